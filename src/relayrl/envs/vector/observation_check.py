"""Whether observations are what their space says, tested on whole batches.

One pass of array comparisons per step when all is well; only a failed pass looks for the rows and entries to name.
What happens to an environment that fails is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, Tree, leaves, space_leaves
from relayrl.envs.environment_settings import ObservationCheck

_MAX_NAMED_ENTRIES = 5


@dataclass(frozen=True, slots=True)
class BadObservation:
    """Lane `(env, agent)` of a batch, and what is wrong with it."""

    env: int
    agent: int
    reason: str


class ObservationChecker:
    """Checks one group's observations; remembers which leaves there are to look at."""

    def __init__(self, space: Space, check: ObservationCheck) -> None:
        self._space_leaves = list(space_leaves(space))
        self._check = check

    def find_bad(self, obs: Tree, rows: Array) -> list[BadObservation]:
        """The lanes among `rows` ([B, N] bool) whose observation (`obs` [B, N, …]) fails the check."""
        if self._check is ObservationCheck.OFF:
            return []
        bad: list[BadObservation] = []
        for (path, leaf), (_, space) in zip(leaves(obs), self._space_leaves, strict=True):
            if leaf.dtype.kind == "f" and not (finite := np.isfinite(leaf)).all():
                bad.extend(_describe(leaf, rows, path, finite, "is not finite"))
            elif self._check is ObservationCheck.SPACE and not (inside := _inside(leaf, space))[rows].all():
                bad.extend(_describe(leaf, rows, path, inside, f"lies outside {space}"))
        return bad


def _inside(leaf: Array, space: Space) -> Array:
    """[B, N, …] bool: which entries lie inside."""
    low, high = _bounds(space)
    return np.asarray((leaf >= low) & (leaf <= high))


def _bounds(space: Space) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1  # MultiBinary


def _describe(leaf: Array, rows: Array, path: str, good: Array, what: str) -> Iterator[BadObservation]:
    lanes = ~good.reshape(*rows.shape, -1).all(axis=-1) & rows
    for env, agent in np.argwhere(lanes).tolist():
        entries = np.argwhere(~good[env, agent])
        named = ", ".join(_entry(leaf[env, agent], tuple(entry)) for entry in entries[:_MAX_NAMED_ENTRIES].tolist())
        more = f" and {len(entries) - _MAX_NAMED_ENTRIES} more" if len(entries) > _MAX_NAMED_ENTRIES else ""
        where = f"observation[{path!r}]" if path else "observation"
        yield BadObservation(env, agent, f"{where} {what} at {named}{more}")


def _entry(row: Any, at: tuple[int, ...]) -> str:
    return f"{list(at)} = {row[at]}" if at else f"value {row}"
