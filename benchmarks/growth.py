"""How cost grows with environments, agents and network width: steps/s and peak memory, with a table and a picture.

    python benchmarks/growth.py                          every point (about 5 s each), then table and picture
    python benchmarks/growth.py --only "PPO width"       one series; its earlier points are replaced
    python benchmarks/growth.py --render                 table and picture again from what was kept

Each point is a run of `relayrl train` in a process of its own, stopped after a few seconds; its first update is not timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT, RESULTS = HERE / "growth.jsonl", HERE / "RESULTS.md"
PICTURE = HERE.parent / "docs" / "images" / "growth.png"
BEGIN, END = "<!-- growth: written by benchmarks/growth.py -->", "<!-- end of growth -->"
SECONDS, MIN_UPDATES = 2.0, 2
THREADS: tuple[int | None, ...] = (None, 1, 2)
"""None: RelayRL as it comes, with compiled kernels where it has them; a number: without them, with so many threads."""


@dataclass(frozen=True)
class Point:
    """One run of a series: `size` is what grows."""

    series: str
    size: int
    threads: int | None
    env: str
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """Runs that differ in one size, and in threads where several are tried."""

    name: str
    title: str
    sizes: tuple[int, ...]
    point: Callable[[int], tuple[str, dict[str, Any]]]
    threads: tuple[int | None, ...] = (None,)

    def points(self) -> list[Point]:
        return [Point(self.name, size, t, *self.point(size)) for size in self.sizes for t in self.threads]


def _ppo(num_envs: int, rollout: int, width: int, algo: str = "ppo") -> dict[str, Any]:
    params = {"train_pi_iters": 4, "train_vf_iters": 4, "num_minibatches": 4, "target_kl": None}
    return {
        "algo": algo,
        "environment.num_envs": num_envs,
        "trainer.time_horizon": rollout,
        "network.hidden_sizes": (width, width),
        "params": params,
    }


def _environments(size: int) -> tuple[str, dict[str, Any]]:
    return "native:CartPole", _ppo(size, 32, 64)


def _agents(size: int, learning: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {"N": size, "continuous_actions": True}
    return "native:simple_spread", {**learning, "environment.options": options}


def _mappo_agents(size: int) -> tuple[str, dict[str, Any]]:
    return _agents(size, _ppo(16, 25, 64, "mappo"))


def _maddpg_agents(size: int) -> tuple[str, dict[str, Any]]:
    replay = {"learning_starts": 256, "batch_size": 256, "buffer_size": 1024}
    params = {**replay, "update_interval": 16, "train_iters": 1}
    learning = {"algo": "maddpg", "environment.num_envs": 16, "network.hidden_sizes": (64, 64), "params": params}
    return _agents(size, learning)


def _ppo_width(size: int) -> tuple[str, dict[str, Any]]:
    return "native:CartPole", _ppo(8, 128, size)


def _td3_width(size: int) -> tuple[str, dict[str, Any]]:
    params = {"learning_starts": 256, "batch_size": 256, "buffer_size": 20_000}
    network = {"hidden_sizes": (size, size), "activation": "relu"}
    return "native:Pendulum", {"algo": "td3", "environment.num_envs": 1, "network": network, "params": params}


ENVIRONMENTS = tuple(4**n for n in range(7))
AGENTS = tuple(2**n for n in range(7))
WIDTHS = tuple(32 * 2**n for n in range(6))
SERIES = [
    Series("PPO environments", "PPO, native:CartPole × 32 steps, 2×64; environments", ENVIRONMENTS, _environments),
    Series(
        "MAPPO agents",
        "MAPPO, native:simple_spread, 16 environments × 25 steps, 2×64; agents",
        AGENTS,
        _mappo_agents,
    ),
    Series(
        "MADDPG agents",
        "MADDPG, native:simple_spread, 16 environments, batch 256 of 1,024, 2×64, a gradient step every 16 steps; agents",
        AGENTS,
        _maddpg_agents,
    ),
    Series(
        "PPO width",
        "PPO, native:CartPole, 8 environments × 128 steps; width of both layers",
        WIDTHS,
        _ppo_width,
        THREADS,
    ),
    Series(
        "TD3 width",
        "TD3, native:Pendulum, batch 256, a gradient step per step; width of both layers",
        WIDTHS,
        _td3_width,
        THREADS,
    ),
]


def run_point(point: Point) -> dict[str, float]:
    """In this process: train for a few seconds after the first update."""
    from relayrl.engines.runs.run_record import Progress, RunInterrupted
    from relayrl.engines.sessions import TrainRequest, open_session, run_session
    from stopping import StopWhen

    ticks: list[tuple[int, float]] = []
    begins = point.flags["params"].get("learning_starts", 0) + 16

    def on_progress(progress: Progress) -> None:
        if progress.num_env_steps >= begins:
            ticks.append((progress.num_env_steps, time.perf_counter()))

    def is_over() -> bool:
        return len(ticks) > MIN_UPDATES and ticks[-1][1] - ticks[0][1] >= SECONDS

    flags = {**point.flags, "trainer.max_steps": 10**9, "evaluation.episodes": 0, "statistics.tensorboard": False}
    if point.threads is not None:
        flags["threads"] = point.threads
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(TrainRequest(point.env, Path(folder) / "run", flags=flags))
        with contextlib.suppress(RunInterrupted):
            run_session(session, on_progress, StopWhen(is_over))
    (first_steps, start), (last_steps, end) = ticks[0], ticks[-1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"env_steps_per_s": (last_steps - first_steps) / (end - start), "peak_mib": memory}


def measure(point: Point) -> dict[str, Any]:
    """The same in a process of its own; an error is a result as well."""
    command = [sys.executable, __file__, "--point", json.dumps(asdict(point))]
    kernels = {} if point.threads is None else {"RELAYRL_COMPILED": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **kernels})
    about = {"series": point.series, "size": point.size, "threads": point.threads}
    if done.returncode:
        return {**about, "error": done.stderr.strip().splitlines()[-1][:200]}
    return {**about, **json.loads(done.stdout.splitlines()[-1])}


def run_series(series: Series, kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure a series; gives all that is then known."""
    rows = [row for row in kept if row["series"] != series.name]
    for point in series.points():
        rows.append(measure(point))
        print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One table per series: a column per size, a line per thread setting."""
    lines = []
    for series in SERIES:
        cells = {(row["size"], row["threads"]): row for row in rows if row["series"] == series.name}
        lines += ["", f"**{series.title}**", "", f"| | {' | '.join(f'{size:,}' for size in series.sizes)} |"]
        lines.append("|---|" + "--:|" * len(series.sizes))
        for threads in series.threads:
            row = [_cell(cells.get((size, threads)), "env_steps_per_s") for size in series.sizes]
            lines.append(f"| steps/s, {way(threads)} | {' | '.join(row)} |")
        memory = [_cell(cells.get((size, series.threads[0])), "peak_mib") for size in series.sizes]
        lines.append(f"| peak MiB | {' | '.join(memory)} |")
    return lines


def way(threads: int | None) -> str:
    """How a line of a series was run."""
    return "as it comes" if threads is None else f"no kernels, {threads} thread{'s' if threads > 1 else ''}"


def _cell(row: dict[str, Any] | None, metric: str) -> str:
    if row is None:
        return "not measured"
    return row["error"] if "error" in row else f"{row[metric]:,.0f}"


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replace this script's part of RESULTS.md, or add it at the end."""
    text = RESULTS.read_text()
    head = "![How cost grows](../docs/images/growth.png)" if rows else "Not measured yet: `make bench-growth`."
    page = "\n".join([BEGIN, head, *(table(rows) if rows else []), END])
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    RESULTS.write_text(before + page + after if BEGIN in text else f"{text.rstrip()}\n\n## Cost growth\n\n{page}\n")


def draw(rows: list[dict[str, Any]]) -> None:
    """A panel per series: steps/s in colour, memory in grey."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SERIES), figsize=(4.6 * len(SERIES), 3.8), layout="constrained")
    for axis, series in zip(axes, SERIES, strict=True):
        memory = axis.twinx()
        for threads in series.threads:
            own = [r for r in rows if r["series"] == series.name and r["threads"] == threads and "error" not in r]
            sizes, rates = [row["size"] for row in own], [row["env_steps_per_s"] for row in own]
            axis.plot(sizes, rates, marker="o", label=way(threads))
            if threads == series.threads[0]:
                memory.plot(sizes, [row["peak_mib"] for row in own], color="grey", linestyle=":", label="memory")
        axis.set(xscale="log", yscale="log", title=series.name, xlabel=series.title.rpartition("; ")[2])
        axis.set_ylabel("environment steps per second")
        memory.set(ylim=(0, None), ylabel="peak MiB (dotted)")
        if len(series.threads) > 1:
            axis.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"one of: {', '.join(series.name for series in SERIES)}")
    parser.add_argument("--render", action="store_true", help="run nothing")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(run_point(Point(**json.loads(arguments.point)))))
        return
    rows = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    for series in SERIES:
        if not arguments.render and arguments.only in (None, series.name):
            rows = run_series(series, rows)
            KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if rows:
        draw(rows)
    write_table(rows)


if __name__ == "__main__":
    main()
