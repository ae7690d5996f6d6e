"""Lessons: PPO in a chain of rooms whose only reward is at its end, with and without a curriculum of shorter chains.

    python benchmarks/lessons.py                            ten rooms of 6 × 6 cells, 300,000 steps, seeds 0 to 2

Every seed is listed, never the best: the step at which the last lesson began, the step from which on at least 0.9 of the latest
100 training episodes reach the goal of the whole chain, and the share of 100 greedy episodes that reach it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rooms_training import SOLVED, parser_of, solved_from, trained


def curriculum(num_rooms: int) -> dict[str, Any]:
    """Chains of two rooms, of three, and so on; the next one begins when 0.8 of the latest 100 episodes reach their goal."""
    done = {"behavior": "agent", "measure": "reward", "threshold": 0.8, "min_lesson_length": 100}
    lessons: list[dict[str, Any]] = [
        {"name": f"{count} rooms", "value": count, "completion_criteria": done} for count in range(2, num_rooms)
    ]
    return {"num_rooms": {"curriculum": [*lessons, {"name": f"{num_rooms} rooms", "value": num_rooms}]}}


def run_seed(with_lessons: bool, seed: int, args: argparse.Namespace, folder: Path) -> str:
    """One row of the table."""
    parameters = curriculum(args.rooms) if with_lessons else {}
    own = {"environment_parameters": parameters, "entropy_coef": 0.01}
    run = trained(seed, args, folder / f"{with_lessons}-{seed}", own)
    steps, share = (np.array(run.history[name]) for name in ("num_env_steps", "episode/return_mean"))
    lesson = np.array(run.history.get("curriculum/num_rooms/lesson", np.full(len(steps), args.rooms - 2.0)))
    is_last = lesson == args.rooms - 2
    solved_at = solved_from(steps, (share >= SOLVED) & is_last)
    began = "–" if not with_lessons else f"{int(steps[is_last.argmax()]):,}" if is_last.any() else "never"
    reached = f"{int(lesson[-1]) + 2}"
    greedy = run.result.mean_return if is_last[-1] else 0.0
    return f"| {'yes' if with_lessons else 'no'} | {seed} | {began} | {reached} | {solved_at} | {greedy:.2f} |"


def main() -> None:
    args = parser_of(__doc__, rooms=10, size=6, steps=300_000).parse_args()
    print("| lessons | seed | last lesson from step | rooms at the end | solved from step | greedy share |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for with_lessons in (True, False):
            for seed in args.seeds.split(","):
                print(run_seed(with_lessons, int(seed), args, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
