"""Small messages with everything in them, and what it means for damaged bytes to be harmless."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.bench.codec_rows import example_rollout
from relayrl.data.arrow.codec import decode_rollout, decode_trajectory, encode
from relayrl.data.columns import Rollout, Trajectory
from relayrl.errors import DecodeError

MAX_BYTES = 1 << 20
KINDS = ("rollout", "trajectory")
DECODE: dict[str, Callable[..., Any]] = {"rollout": decode_rollout, "trajectory": decode_trajectory}


def example(kind: str) -> Rollout | Trajectory:
    """Small, with every optional column and a nested space."""
    rollout = example_rollout(6, 4, mean_episode_steps=3)
    space = spaces.Dict(
        {"x": spaces.Box(-1, 1, (2, 2)), "t": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(3)])}
    )
    rng = np.random.default_rng(0)

    def observe(*leading: int) -> Any:
        bits = rng.integers(0, 2, (*leading, 3), dtype=np.int8)
        return {"x": rng.random((*leading, 2, 2), dtype=np.float32), "t": (rng.integers(0, 3, leading), bits)}

    ids = dataclasses.replace(rollout.header, env_ids=rollout.header.env_ids[:2], agent_ids=("a", "b"))
    rollout = dataclasses.replace(
        rollout,
        header=dataclasses.replace(ids, observation_space=space),
        obs=observe(6, 4),
        successors=dataclasses.replace(rollout.successors, obs=observe(len(rollout.successors))),
        action_mask=rng.random((6, 4, 4)) < 0.5,
        memory=(rng.random((6, 4, 2)),),
    )
    return rollout if kind == "rollout" else next(t for t in rollout.trajectories() if len(t) > 1)


def decodes_to_something_sound(kind: str, data: bytes) -> bool:
    """False if refused. What is accepted must keep all rules, which encoding and splitting check again."""
    try:
        decoded = DECODE[kind](data, max_bytes=MAX_BYTES)
    except DecodeError:
        return False
    assert encode(decoded).size > 0
    if isinstance(decoded, Rollout):
        assert sum(map(len, decoded.trajectories())) == decoded.valid.sum()
    return True
