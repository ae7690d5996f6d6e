"""PPO in a chain of rooms whose only reward is at its end: what the benchmarks of exploration and lessons share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import relayrl

SOLVED = 0.9
"""Share of episodes that reach the goal from which on a chain counts as solved."""


def parser_of(description: str | None, *, rooms: int, size: int, steps: int) -> argparse.ArgumentParser:
    """The options of both, with these defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", type=int, default=rooms)
    parser.add_argument("--size", type=int, default=size)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", default="0,1,2")
    return parser


def trained(seed: int, args: argparse.Namespace, run_dir: Path, settings: Mapping[str, Any]) -> relayrl.Run:
    """A run of 16 environments, evaluated by 100 greedy episodes."""
    return relayrl.train(
        "native:rooms",
        algo="ppo",
        steps=args.steps,
        num_envs=16,
        seed=seed,
        run_dir=run_dir,
        settings={
            "environment.options": {"num_rooms": args.rooms, "room_size": args.size},
            "summary_freq": 2048,
            "evaluation.episodes": 100,
            **settings,
        },
        progress=False,
    )


def solved_from(steps: np.ndarray, is_solved: np.ndarray) -> str:
    """The step of the first row that is solved and has no other after it that is not."""
    unsolved = np.flatnonzero(~is_solved)
    first = 0 if not len(unsolved) else unsolved[-1] + 1
    return f"{int(steps[first]):,}" if first < len(steps) else "never"
