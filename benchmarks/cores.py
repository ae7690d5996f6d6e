"""How the works of `benchmarks/peers` scale with cores: environment steps/s with each number of threads, and the ratio to two.

    python benchmarks/cores.py                                every row with 1, 2, 4 … threads, up to one a core; under 200 s
    python benchmarks/cores.py --threads 1,2,16 --rows W2k,W5 some of both: rows whose names begin so
    python benchmarks/cores.py --peers                        Stable-Baselines3 and JAX beside it, where they are installed

A row is a process, in which the numbers of threads take turns, twice; a figure is the median of its iterations. "same" says
whether the losses of one update are the same bits with every number of threads. A peer has a process for each number of threads
and counts with its best. The last line is everything as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS = {
    "W1 native": ("W1", "native:CartPole"),
    "W1": ("W1", "CartPole-v1"),
    "W2 native": ("W2", "native:CartPole"),
    "W2k": ("W2k", "native:CartPole"),
    "W4c mappo": ("W4c", "mappo"),
    "W4c ippo": ("W4c", "ippo"),
    "W5-td3": ("W5-td3", ""),
    "W5-sac": ("W5-sac", ""),
    "W6a 3×256": ("W6a", ""),
    "W6b 3×512": ("W6b", ""),
}
TURNS = 2
START_S = 4.0
"""Of a row's process, and of the first updates of its runs, which are not timed."""
OFF_POLICY_ROW_STEPS = 25
FIRST_ROWS = 2
"""Of statistics, which are not timed; the losses of the last of them are compared."""

sys.path[:0] = [str(HERE / "peers"), str(HERE / "peers" / "workers")]
from jobs import JOBS  # noqa: E402 - of the peers' harness, whose work this is
from relayrl_worker import settings_of  # noqa: E402
from targets import JAX  # noqa: E402
from work import OffPolicyWork, Task  # noqa: E402
from worker_process import WorkerError, run_worker  # noqa: E402

PEERS = {"Stable-Baselines3": "stable_baselines3", JAX: "jax"}


def run_row(name: str, counts: list[int], seconds: float) -> dict[str, Any]:
    """In this process: figures by number of threads."""
    from relayrl.compiled.loader import describe, set_num_threads

    goes: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for turn in range(TURNS):
        for count in counts if turn % 2 == 0 else counts[::-1]:
            set_num_threads(count)
            goes[count].append(_one_run(Task(*ROWS[name], threads=0, seed=1), seconds / TURNS))
    cells = {}
    for count, runs in goes.items():
        medians = {
            key: statistics.median(run[key] for run in runs) for key in ("steps_per_s", "collect_ms", "learn_ms")
        }
        cells[count] = {**medians, "losses": sorted({run["losses"] for run in runs})}
    if _are_same(cells):
        for cell in cells.values():
            cell["losses"] = ["same"]
    return {"row": name, "computed_by": describe(), "threads": cells}


def _are_same(cells: dict[int, dict[str, Any]]) -> bool:
    """Whether every run with every number of threads gave the same losses."""
    return len({losses for cell in cells.values() for losses in cell["losses"]}) == 1


def _one_run(task: Task, seconds: float) -> dict[str, Any]:
    from relayrl.engines.runs.run_record import Progress, RunInterrupted
    from relayrl.engines.sessions import TrainRequest, open_session, run_session
    from stopping import StopWhen

    env, flags = settings_of(task)
    row_steps = OFF_POLICY_ROW_STEPS if isinstance(task.work, OffPolicyWork) else task.ppo.batch
    flags |= {"trainer.max_steps": 10**9, "trainer.summary_freq": row_steps, "statistics.tensorboard": False}
    flags["evaluation.episodes"] = 0
    rows: list[Any] = []
    ticks: list[float] = []

    def on_progress(progress: Progress) -> None:
        if progress.num_env_steps >= task.work.steps_before_clock and progress.num_env_steps % row_steps == 0:
            rows.append(progress.row)
            ticks.append(time.perf_counter())

    def is_over() -> bool:
        return len(ticks) > FIRST_ROWS + 1 and ticks[-1] - ticks[FIRST_ROWS - 1] >= seconds

    with tempfile.TemporaryDirectory() as folder:
        session = open_session(TrainRequest(env, Path(folder) / "run", flags=flags))
        with contextlib.suppress(RunInterrupted):
            run_session(session, on_progress, StopWhen(is_over))
    gaps = [after - before for before, after in zip(ticks[FIRST_ROWS - 1 :], ticks[FIRST_ROWS:], strict=False)]
    timed = rows[FIRST_ROWS:]
    phases = {
        f"{phase}_ms": 1e3 * row_steps / statistics.median(row[f"time/{phase}_steps_per_s"] for row in timed)
        for phase in ("collect", "learn")
    }
    losses = {key: value for key, value in rows[FIRST_ROWS - 1].items() if key.endswith(("/loss", "/gradient_norm"))}
    return {
        "steps_per_s": row_steps / statistics.median(gaps),
        **phases,
        "losses": json.dumps(losses),
    }


def measure(name: str, counts: list[int], seconds: float) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([name, counts, seconds])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"row": name, "error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    figures["threads"] = {int(count): cell for count, cell in figures["threads"].items()}
    return figures


def peers_of(work: str, counts: list[int]) -> dict[str, float]:
    """Steps/s of the peers that do this work and are installed, each with its best number of threads."""
    best: dict[str, float] = {}
    for job in JOBS:
        if job.work == work and job.peer in PEERS and importlib.util.find_spec(PEERS[job.peer]):
            for count in counts:
                with contextlib.suppress(WorkerError):  # that number of threads does not count
                    task = Task(work, job.variant, count, seed=1, quick=True)
                    figures = run_worker(None, HERE / "peers" / "workers" / job.script, task)
                    best[job.peer] = max(best.get(job.peer, 0.0), figures["env_steps_per_s"])
    return best


def table_line(figures: dict[str, Any], counts: list[int]) -> str:
    """A line of the table."""
    if "error" in figures:
        return f"| {figures['row']} | {figures['error']} |"
    cells, base = figures["threads"], figures["threads"].get(2)
    texts = []
    for count in counts:
        cell = cells[count]
        ratio = f" ({cell['steps_per_s'] / base['steps_per_s']:.2f})" if base else ""
        texts.append(f"{cell['steps_per_s']:,.0f}{ratio}, {cell['collect_ms']:.3g} + {cell['learn_ms']:.3g} ms")
    best = max(cell["steps_per_s"] for cell in cells.values())
    peers = [f"{best / figures['peers'][p]:.2f}×" if p in figures["peers"] else "" for p in PEERS]
    same = "yes" if _are_same(cells) else "NO"
    return f"| {' | '.join([figures['row'], *texts, same, *peers])} |"


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    powers = ",".join(str(2**n) for n in range(int(math.log2(cores)) + 1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default=powers, help=f"numbers of threads; default {powers}")
    parser.add_argument("--rows", default="", help=f"beginnings of: {', '.join(ROWS)}")
    parser.add_argument(
        "--budget", type=float, default=190.0, help="seconds for all rows, without the peers; default 190"
    )
    parser.add_argument("--peers", action="store_true", help="the peers that are installed beside it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_row(*json.loads(arguments.one))))
        return
    counts = [int(count) for count in arguments.threads.split(",")]
    names = [name for name in ROWS if name.startswith(tuple(arguments.rows.split(",")))]
    seconds = (arguments.budget / max(1, len(names)) - START_S) / len(counts)
    print(f"| row | {' | '.join(f'{n} threads' for n in counts)} | same | Stable-Baselines3 | JAX |", flush=True)
    print("|---|" + "--:|" * (len(counts) + 3), flush=True)
    everything = []
    for name in names:
        figures = measure(name, counts, min(max(seconds, 0.5), 6.0))
        figures["peers"] = peers_of(ROWS[name][0], counts) if arguments.peers else {}
        everything.append(figures)
        print(table_line(figures, counts), flush=True)
    print(json.dumps({"cores": cores, "rows": everything}))


if __name__ == "__main__":
    main()
