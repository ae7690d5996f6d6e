"""Trajectories of every kind for checks of whatever stores or sends them, and an equality that sees every bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow.space_json import DTYPES, space_to_json
from relayrl.data.choices import value_bounds
from relayrl.data.columns import Trajectory
from relayrl.data.trees import Space, allocate, leaves, map_tree, space_leaves, unflatten


def example_trajectories(seed: int) -> Iterator[Trajectory]:
    """Trajectories of random bits, choices among their options, over every kind of space, dtype, flag and optional column.

    Ids are new each time.
    """
    rng = np.random.default_rng(seed)
    nested = spaces.Dict(
        [
            ("camera", spaces.Box(0, 255, (2, 3), np.uint8)),
            ("a.b%", spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])),
            ("nothing", spaces.Box(-1, 1, (0,), np.float64)),
        ]
    )
    every_dtype = spaces.Tuple([spaces.Box(0, 1, (2,), dtype.type) for dtype in DTYPES.values()])
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    yield _example(rng, "group", box, spaces.Discrete(4), 5)
    yield _example(rng, "group", box, spaces.Discrete(4), 1, terminated=True, first_step=2**40)
    yield _example(rng, "group", box, spaces.Discrete(4), 3, terminated=True, first_step=2**40, end_step=2**40 + 3)
    steps = np.array([6, 7, 9, 2**40])
    yield _example(rng, "group", box, spaces.Discrete(4), 4, truncated=True, step=steps, end_step=2**40 + 7)
    yield _example(rng, "group", box, spaces.Discrete(4), 2, truncated=True, failed=True, step=steps[:2], end_step=9)
    yield _example(rng, 'mit Komma, "“\n%00', nested, box, 3, truncated=True, failed=True, agent_id="a,b\x00%\r")
    optional = {"logp": _bits(rng, np.zeros(4, np.float32)), "value": _bits(rng, np.zeros(4, np.float32))}
    yield _example(rng, "", every_dtype, spaces.MultiDiscrete([2, 5]), 4, agent_id="", truncated=True, **optional)
    yield _example(
        rng,
        "recurrent",
        spaces.Box(-1, 1, (), np.float64),
        nested,
        6,
        terminated=True,
        truncated=True,
        action_mask=rng.random((6, 4)) < 0.5,
        final_mask=rng.random(4) < 0.5,
        memory={"h": _bits(rng, np.zeros((6, 2), np.float16)), "c": (_bits(rng, np.zeros(6, np.int64)),)},
    )
    state = {"map": np.zeros((2, 2), np.uint8), "time": np.zeros((), np.float32), "nothing": np.zeros((0,), np.float32)}
    yield _example(
        rng,
        "seen from above",
        nested,
        spaces.Discrete(2),
        5,
        truncated=True,
        state=_bits(rng, map_tree(lambda leaf: np.zeros((5, *leaf.shape), leaf.dtype), state)),
        final_state=_bits(rng, state),
    )


def _example(
    rng: np.random.Generator, group: str, observation: Space, action: Space, num_steps: int, **fields: Any
) -> Trajectory:
    defaults: dict[str, Any] = {
        "trajectory_id": uuid4(),
        "env_id": UUID(bytes=rng.bytes(16)),
        "agent_id": "agent",
        "episode": int(rng.integers(2**62)),
        "first_step": 0,
        "terminated": False,
        "truncated": False,
        "failed": False,
    }
    return Trajectory(
        group=group,
        observation_space=observation,
        action_space=action,
        obs=random_values(rng, observation, (num_steps,)),
        action=random_values(rng, action, (num_steps,)),
        reward=_bits(rng, np.zeros(num_steps, np.float32)),
        policy_version=rng.integers(0, 2**63 - 1, num_steps),
        final_obs=random_values(rng, observation, ()),
        **(defaults | fields),
    )


def random_values(rng: np.random.Generator, space: Space, leading: tuple[int, ...]) -> Any:
    """A tree of `space` of random bits; a choice is one of its options."""

    def fill(leaf: Any, part: Space) -> Any:
        bounds = value_bounds(part)
        if bounds is None or not leaf.size:
            return _bits(rng, leaf)
        largest = int(np.iinfo(leaf.dtype).max)
        low, high = (np.broadcast_to(bound, leaf.shape).reshape(-1).tolist() for bound in bounds)
        drawn = [
            rng.integers(a, min(b, largest), dtype=leaf.dtype, endpoint=True) for a, b in zip(low, high, strict=True)
        ]
        return np.array(drawn, leaf.dtype).reshape(leaf.shape)

    flat = leaves(allocate(space, leading))
    parts = (part for _, part in space_leaves(space))
    return unflatten(space, iter([fill(leaf, part) for (_, leaf), part in zip(flat, parts, strict=True)]))


def _bits(rng: np.random.Generator, tree: Any) -> Any:
    def fill(leaf: Any) -> Any:
        if leaf.dtype == bool:
            return np.asarray(rng.random(leaf.shape) < 0.5)
        return np.frombuffer(rng.bytes(leaf.nbytes), leaf.dtype).reshape(leaf.shape).copy()

    return map_tree(fill, tree)


def difference(one: Trajectory, other: Trajectory) -> str | None:
    """The first field in which two trajectories differ in any bit, dtype or shape; None if there is none."""
    for name in (*(field.name for field in dataclasses.fields(Trajectory)), "steps", "num_env_steps", "knows_steps"):
        if name in ("step", "end_step"):  # may be left out where they say nothing new
            continue
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, spaces.Space) and isinstance(theirs, spaces.Space):
            mine, theirs = space_to_json(mine), space_to_json(theirs)
        elif isinstance(mine, np.ndarray | np.generic | dict | tuple):
            mine, theirs = ([*map(_outline, leaves(tree))] for tree in (mine, theirs))
        if mine != theirs:
            return f"field {name!r} of trajectory {one.trajectory_id} differs: {mine!r:.200} / {theirs!r:.200}"
    return None


def _outline(leaf: tuple[str, Any]) -> tuple[str, str, tuple[int, ...], bytes]:
    path, array = leaf
    array = np.asarray(array)
    return path, str(array.dtype), array.shape, array.tobytes()
