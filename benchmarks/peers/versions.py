"""RelayRL's rows of the peers' table by two versions of it, in turn: what a change of the code costs or gains.

    git worktree add ../before COMMIT && (cd ../before && python setup.py --quiet build_ext --inplace)
    python benchmarks/peers/versions.py ../before                      every row, three rounds; some 10 minutes
    python benchmarks/peers/versions.py ../before --only W2k,W4c --rounds 5

A peer's figure does not change with our code, so a ratio to it moves as much as ours does. Each run is a process of its own,
by the worker of its own version; a round takes both sides one after the other, every second round the other way round. Runs
during which others kept more than a tenth of a core busy are shown with their number.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from jobs import JOBS, Job
from targets import OURS
from work import Task
from worker_process import WorkerError, run_worker

HERE = Path(__file__).parent
BUSY_CORES = 0.1
SECONDS, RATE = "seconds_to_threshold", "env_steps_per_s"


def figure(tree: Path, job: Job, seed: int) -> tuple[float, float]:
    """What one run gave, the more the better, and the cores that others kept busy meanwhile."""
    os.environ["PYTHONPATH"] = str(tree / "src")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start would compile RelayRL anew, as no user's does
    found = run_worker(
        None, tree / "benchmarks" / "peers" / "workers" / job.script, Task(job.work, job.variant, 0, seed)
    )
    seconds = found.get(SECONDS)
    return float(found[RATE] if seconds is None else 1 / seconds), float(found["foreign_cores"])


def row(trees: tuple[Path, Path], job: Job, rounds: int) -> str:
    """A line of the table: medians of both sides, and the ratios of the rounds."""
    values: tuple[list[float], list[float]] = ([], [])
    num_busy = 0
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            value, foreign = figure(trees[side], job, number)
            values[side].append(value)
            num_busy += foreign > BUSY_CORES
    ratios = [after / before for before, after in zip(*values, strict=True)]
    spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
    shown = [f"{statistics.median(side):,.4g}" for side in values]
    return f"| {job.work} {job.variant} | {shown[0]} | {shown[1]} | {statistics.median(ratios):.3f} | {spread} | {num_busy} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="another checkout, its kernels built")
    parser.add_argument("--only", help="works, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    trees = asked.before.resolve(), HERE.parents[1]
    only = None if asked.only is None else asked.only.split(",")
    print("| work | before | after | ratio | of the rounds | busy runs |\n|---|---|---|---|---|---|")
    for job in JOBS:
        if job.peer == OURS and (only is None or job.work in only):
            try:
                print(row(trees, job, asked.rounds), flush=True)
            except WorkerError as error:
                print(f"| {job.work} {job.variant} | {error} | | | | |", flush=True)


if __name__ == "__main__":
    main()
