"""Every learning result: trains seeds with the shipped presets, evaluates them, keeps a line of each, and renders the tables.

    python benchmarks/learning.py                                   all rows and seeds that are not there yet
    python benchmarks/learning.py --row HalfCheetah-v5/sac --seeds 0,1 --jobs 2
    python benchmarks/learning.py --render                          only RESULTS.md and the pages, from the finished seeds

A seed is one `relayrl train ENV --algo NAME --seed S`: the presets say all else. Its return is the final policy's mean over
100 greedy episodes in fresh environments, or, where a row names another environment to play in, that of the exported policy
there. Every seed is listed, never the best.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from learning_pictures import IMAGES, draw_curves
from learning_records import RECORDS, Point, SeedRecord, append_record, read_records
from learning_rows import ROWS, LearningRow
from learning_tables import write_sections
from relayrl.engines.settings.run_settings import build_run_settings, preset
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.vector.on_host import on_host
from relayrl.testing.random_play import random_actions
from relayrl.training.statistics.statistics_writers import STEP_COLUMN, read_progress

EPISODES = 100
PLAY_SEED = 50_000
"""Environments of evaluations elsewhere, and of random play; no run trains with seeds of this size."""


def run_seed(row: LearningRow, seed: int, folder: Path) -> SeedRecord:
    """Train and evaluate one seed, each in a process of its own."""
    run_dir = folder / f"{row.name.replace('/', '-').replace(':', '-')}-{seed}"
    settings = ["--set", f"evaluation.episodes={EPISODES}", "--set", f"interval_episodes={EPISODES}"]
    trained = relayrl(
        "train", *row.command.split()[2:], "--seed", str(seed), "--run-dir", str(run_dir), *settings, "--quiet"
    )
    played = trained
    if row.playground is not None:
        where = [*row.playground.flags, "--episodes", str(EPISODES), "--seed", str(PLAY_SEED)]
        played = relayrl("evaluate", str(run_dir), *where)
    return SeedRecord(
        row=row.name,
        seed=seed,
        num_env_steps=trained["num_env_steps"],
        played_in=row.played_in,
        episodes=EPISODES,
        mean_return=played["mean_return"],
        std_return=played["std_return"],
        random_return=random_return(row),
        seconds=round(trained["seconds"], 1),
        curve=evaluations_of(run_dir),
        preset=preset(row.env, row.algo),
    )


def relayrl(*arguments: str) -> dict[str, Any]:
    """Run a command; gives its JSON."""
    command = [sys.executable, "-m", "relayrl.cli.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def evaluations_of(run_dir: Path) -> tuple[Point, ...]:
    """The evaluations during a run."""
    table = read_progress(run_dir / "progress.csv")
    returns = table.get("evaluation/return_mean", [])
    rows = zip(table[STEP_COLUMN], returns, strict=False)
    return tuple((int(steps), round(float(value), 2)) for steps, value in rows if math.isfinite(value))


def random_return(row: LearningRow) -> float:
    """Mean return, over agents and episodes, of uniformly random actions where the row is evaluated."""
    options = build_run_settings(row.env, None, {"algo": row.algo}, []).environment.options
    options = options if row.playground is None else dict(row.playground.options)
    env = on_host(make_vector(row.played_in, EnvSettings(num_envs=20, options=options)))
    rng = np.random.default_rng(PLAY_SEED)
    num_agents = sum(group.num_agents for group in env.groups.values())
    returns: list[float] = []
    running = np.zeros(env.num_envs)
    try:
        step: Any = env.reset(seed=PLAY_SEED)
        while len(returns) < EPISODES:
            step = env.step(random_actions(env.groups, step.groups, rng))
            running += sum(group.reward.sum(1, dtype=np.float64) for group in step.groups.values()) / num_agents
            for b in np.flatnonzero(step.episode_over):
                returns.append(float(running[b]))
                running[b] = 0.0
    finally:
        env.close()
    return round(float(np.mean(returns)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="part of a row's name, such as HalfCheetah-v5/sac; repeatable")
    parser.add_argument("--seeds", help="numbers with commas; default: as many as the row asks for")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where finished seeds are kept")
    parser.add_argument("--render", action="store_true", help="train nothing, write the tables")
    arguments = parser.parse_args()
    if not arguments.render:
        run_missing(arguments)
    records = read_records(arguments.records)
    write_sections(records)
    draw_curves(records, "native:simple_speaker_listener", IMAGES / "speaker-listener.png")


def run_missing(arguments: argparse.Namespace) -> None:
    """Run the seeds asked for that have no line of the present preset."""
    finished = {(one.row, one.seed) for one in read_records(arguments.records)}
    rows = [row for row in ROWS if arguments.row is None or any(part in row.name for part in arguments.row)]
    chosen = None if arguments.seeds is None else [int(seed) for seed in arguments.seeds.split(",")]
    todo = [(row, seed) for row in rows for seed in chosen or range(row.num_seeds) if (row.name, seed) not in finished]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        for future in as_completed([pool.submit(run_seed, row, seed, Path(folder)) for row, seed in todo]):
            record = future.result()
            append_record(record, arguments.records)
            print(f"{record.row} seed {record.seed}: {record.mean_return:.1f} ± {record.std_return:.1f}", flush=True)


if __name__ == "__main__":
    main()
