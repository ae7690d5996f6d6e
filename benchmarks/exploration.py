"""Exploration by reward signals: PPO alone, with rnd and with curiosity, in a chain of rooms whose only reward is at its end.

    python benchmarks/exploration.py                            six rooms of 10 × 10 cells, 400,000 steps, seeds 0 to 2
    python benchmarks/exploration.py --steps 1000000 --signals none

Every seed is listed, never the best: the step from which on at least 0.9 of the latest 100 training episodes reach the goal,
the share at the end, that of 100 greedy episodes, and steps per second.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rooms_training import SOLVED, parser_of, solved_from, trained

SIGNALS: dict[str, dict[str, Any]] = {
    "none": {},
    "rnd": {"rnd": {"strength": 0.5, "options": {"learning_rate": 1e-3}}},
    "curiosity": {"curiosity": {"strength": 0.5}},
}


def run_seed(signal: str, seed: int, args: argparse.Namespace, folder: Path) -> str:
    """One row of the table."""
    run = trained(seed, args, folder / f"{signal}-{seed}", {"reward_signals": SIGNALS[signal]})
    steps, share = (np.array(run.history[name]) for name in ("num_env_steps", "episode/return_mean"))
    solved_at, speed = solved_from(steps, share >= SOLVED), run.result.env_steps_per_s
    return f"| {signal} | {seed} | {solved_at} | {share[-1]:.2f} | {run.result.mean_return:.2f} | {speed:,.0f} |"


def main() -> None:
    parser = parser_of(__doc__, rooms=6, size=10, steps=400_000)
    parser.add_argument("--signals", default=",".join(SIGNALS))
    args = parser.parse_args()
    print("| signal | seed | solved from step | training share | greedy share | steps/s |\n|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for signal in args.signals.split(","):
            for seed in args.seeds.split(","):
                print(run_seed(signal, int(seed), args, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
