"""The generic presets beside Stable-Baselines3's defaults, on environments without a preset of their own.

    python benchmarks/generic_presets.py --jobs 2                all rows, both sides, seeds 0 to 9, that are not there yet
    python benchmarks/generic_presets.py --row FrozenLake --seeds 100,101 --set params.entropy_coef=0.01 --records tried.jsonl
    python benchmarks/generic_presets.py --render                only the table in RESULTS.md, from the finished seeds

A run is `relayrl train ENV --steps N --seed S` without another setting, or `PPO("MlpPolicy", env).learn(N)`. Its return is
the mean of 100 greedy episodes in fresh environments, of at most 1,000 steps each, over agents where there are several. Presets
were chosen on seeds from 100; the table has seeds from 0. Needs `sb3-contrib` for the row with a memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDS = HERE / "generic_preset_records.jsonl"
RESULTS = HERE / "RESULTS.md"
BEGIN, END = "<!-- generic presets: written by benchmarks/generic_presets.py -->", "<!-- end of generic presets -->"
EPISODES = 100
MAX_EPISODE_STEPS = 1_000
"""Longer ones are cut: a greedy policy may walk in circles for ever."""


@dataclass(frozen=True)
class Row:
    """One environment and algorithm; `settings` are what a user of the kind would add, such as a memory."""

    env: str
    algo: str
    steps: int
    settings: tuple[str, ...] = ()
    num_seeds: int = 10

    @property
    def name(self) -> str:
        return f"{self.env}/{self.algo}"


ROWS = (
    Row("FrozenLake-v1", "ppo", 50_000),
    Row("CliffWalking-v1", "ppo", 50_000),
    Row("CartPole-v0", "ppo", 30_000),
    Row("MountainCar-v0", "ppo", 100_000, num_seeds=5),
    Row("InvertedPendulum-v5", "ppo", 50_000, num_seeds=5),
    Row("mpe2:simple_v3", "ppo", 30_000, num_seeds=5),
    Row("small_environments:Catch", "ppo", 20_000, num_seeds=3),
    Row(
        "relayrl.testing.memory_environments:RecallCue",
        "ppo",
        20_000,
        ("network.memory={kind: lstm, size: 64}",),
        num_seeds=3,
    ),
    Row("mpe2:simple_spread_v3", "ippo", 30_000, num_seeds=3),
    Row("InvertedPendulum-v5", "sac", 5_000),
    Row("InvertedPendulum-v5", "td3", 5_000, num_seeds=3),
)


def ours(row: Row, seed: int, assignments: list[str]) -> float:
    """Train as a user would who names nothing but the environment; gives the greedy return."""
    sets = [word for one in (*row.settings, *assignments) for word in ("--set", one)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "relayrl.cli.main",
            "train",
            row.env,
            "--algo",
            row.algo,
            "--steps",
            str(row.steps),
        ]
        command += ["--seed", str(seed), "--run-dir", f"{folder}/run", "--quiet", "--json", *sets]
        evaluation = {"episodes": EPISODES, "max_episode_steps": MAX_EPISODE_STEPS}
        command += [word for key, value in evaluation.items() for word in ("--set", f"evaluation.{key}={value}")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_one_thread())
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["mean_return"])


def peers(row: Row, seed: int, _: list[str]) -> float:
    """Stable-Baselines3's defaults for the same number of environment steps."""
    command = [sys.executable, str(HERE / "generic_presets_sb3.py"), row.env, row.algo, str(row.steps), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_one_thread())
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


SIDES: dict[str, Callable[[Row, int, list[str]], float]] = {"relayrl": ours, "stable-baselines3": peers}


def _one_thread() -> dict[str, str]:
    """The environment of a run: one thread, and the environments beside this file importable."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}


def read(path: Path) -> list[dict[str, Any]]:
    """All finished runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_missing(arguments: argparse.Namespace) -> None:
    """Run what was asked for and is not there yet."""
    finished = {(one["row"], one["side"], one["seed"], *one["set"]) for one in read(arguments.records)}
    rows = [row for row in ROWS if arguments.row is None or any(part in row.name for part in arguments.row)]
    sides = [side for side in SIDES if arguments.side in (None, side)]
    todo = [
        (row, side, int(seed))
        for row in rows
        for seed in (arguments.seeds.split(",") if arguments.seeds else range(row.num_seeds))
        for side in sides
        if (row.name, side, int(seed), *arguments.set) not in finished
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(SIDES[side], row, seed, arguments.set): (row, side, seed) for row, side, seed in todo}
        for future in as_completed(running):
            row, side, seed = running[future]
            record = {"row": row.name, "steps": row.steps, "side": side, "seed": seed, "set": arguments.set}
            record["return"] = round(future.result(), 3)
            with arguments.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{row.name} {side} seed {seed}: {record['return']}", flush=True)


def table(records: list[dict[str, Any]]) -> str:
    """Every seed of every row, both sides."""
    lines = [
        "| environment | algorithm | steps | RelayRL, each seed | mean ± std | Stable-Baselines3, each seed | mean ± std |",
        "|---|---|--:|---|--:|---|--:|",
    ]
    for row in ROWS:
        cells = [row.env, row.algo, f"{row.steps:,}"]
        for side in SIDES:
            found = sorted(
                (one["seed"], one["return"]) for one in records if (one["row"], one["side"]) == (row.name, side)
            )
            returns = [value for _, value in found]
            spread = f"{statistics.mean(returns):.2f} ± {statistics.stdev(returns):.2f}" if len(returns) > 1 else ""
            cells += [", ".join(f"{value:.4g}" for value in returns), spread]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="part of a row's name; repeatable")
    parser.add_argument("--side", choices=SIDES, help="one side alone")
    parser.add_argument("--seeds", help="numbers with commas; default: as many as the row asks for")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting to try on our side: key=value; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where finished runs are kept")
    parser.add_argument("--render", action="store_true", help="train nothing, write the table")
    arguments = parser.parse_args()
    if not arguments.render:
        run_missing(arguments)
    if arguments.records == RECORDS:
        before, _, rest = RESULTS.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        RESULTS.write_text(f"{before}{BEGIN}\n{table(read(RECORDS))}\n{END}{after}")


if __name__ == "__main__":
    main()
