"""Run the peers beside RelayRL on the same work, and write what came of it into RESULTS.md.

    python benchmarks/peers/compare.py                              everything, 3 rounds (hours, and 9 GB of peers)
    python benchmarks/peers/compare.py --only Stable-Baselines3/W1  one peer and work, with ours beside it
    python benchmarks/peers/compare.py --quick                      a fourth of the steps, once; the table is printed, not kept
    python benchmarks/peers/compare.py --fresh                      everything, without what was kept of earlier versions
    python benchmarks/peers/compare.py --render                     the table and the picture again, without running anything

Every run is a process of its own, one after the other; a round visits all jobs, every second one in reverse. With each peer one
and two torch threads are tried, then the better is kept. A peer that cannot be installed or fails has a row that says so.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from environments import InstallError, python_of
from jobs import JOBS, Job, selected
from machine import machine_description
from measurements import Measurement, append, read, threads_to_run
from results_page import section, write_section
from work import Task
from worker_process import WorkerError, run_worker

HERE = Path(__file__).parent
KEPT, QUICK = HERE / "measurements.jsonl", HERE / "quick.jsonl"
PICTURE = HERE.parents[1] / "docs" / "images" / "peers.png"


def measure(job: Job, threads: int, place: tuple[str, int], *, quick: bool) -> Measurement:
    """One run, whatever comes of it."""
    session, round_number = place
    task = Task(job.work, job.variant, threads, seed=round_number, quick=quick)
    about = (session, round_number, job.peer, job.work, job.variant, threads, machine_description())
    try:
        python = None if job.venv is None else python_of(job.venv)
        figures = run_worker(python, HERE / "workers" / job.script, task)
    except (InstallError, WorkerError) as error:
        return Measurement(*about, error=f"{type(error).__name__}: {error}")
    return Measurement(*about, figures=figures)


def run_rounds(jobs: list[Job], num_rounds: int, path: Path, *, quick: bool) -> None:
    """Every job in every round; each run is kept as soon as it has ended."""
    session = time.strftime("%Y-%m-%dT%H:%M:%S")
    for round_number in range(num_rounds):
        for job in jobs if round_number % 2 == 0 else reversed(jobs):
            for threads in threads_to_run(job, read(path)):
                measurement = measure(job, threads, (session, round_number), quick=quick)
                append(path, measurement)
                print(_line(job, measurement), flush=True)


def _line(job: Job, measurement: Measurement) -> str:
    figures = measurement.figures
    numbers = {name: figures.get(name) for name in ("env_steps_per_s", "seconds_to_threshold", "mean_return")}
    shown = [f"{name} {value:,.1f}" for name, value in numbers.items() if value is not None]
    return f"{job.name}, {measurement.threads or 'own'} threads: {measurement.error or ', '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of every job")
    parser.add_argument("--only", help="PEER, PEER/WORK or PEER/WORK/VARIANT")
    parser.add_argument("--fresh", action="store_true", help="forget what was kept before")
    parser.add_argument("--quick", action="store_true", help="few steps, one round, nothing kept")
    parser.add_argument("--render", action="store_true", help="write the table and picture from what was kept")
    arguments = parser.parse_args()
    path = QUICK if arguments.quick else KEPT
    if arguments.quick or arguments.fresh:
        path.unlink(missing_ok=True)
    if not arguments.render:
        run_rounds(selected(arguments.only), 1 if arguments.quick else arguments.rounds, path, quick=arguments.quick)
    measurements = read(path)
    if arguments.quick:
        print(section(JOBS, measurements))
        return
    from pictures import draw_peers

    draw_peers(measurements, PICTURE)
    write_section(JOBS, measurements)


if __name__ == "__main__":
    main()
