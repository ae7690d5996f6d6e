"""What a sink takes: trajectories that fit their spaces, taken apart into the arrays that are stored.

A trajectory is checked when it is written, not when it is flushed, so that a wrong one is refused where it came from.
Equal layouts are one object within a sink, and its schema is worked out once.

Not its job: batches (`row_batches`) or database rows (`database_rows`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.arrow_arrays import space_of_tree, tree_leaves
from relayrl.data.columns import Trajectory
from relayrl.data.schema import LOGP, POLICY_VERSION, REWARD, VALUE, Kind, Layout, Leaf
from relayrl.data.trees import Array, Tree
from relayrl.errors import ConfigError

_MAX_CACHED_KEYS = 256
_HEADER_BYTES = 256
"""Roughly what a trajectory costs beside its arrays."""


@dataclass(frozen=True, slots=True)
class CheckedTrajectory:
    """A trajectory, its layout, and its arrays in the order of `stored_leaves`; `final` in that of `layout.observation`."""

    trajectory: Trajectory
    layout: Layout
    arrays: tuple[Array, ...]
    final: tuple[Array, ...]

    @property
    def num_steps(self) -> int:
        return len(self.trajectory.reward)

    @property
    def num_bytes(self) -> int:
        return _HEADER_BYTES + sum(array.nbytes for array in self.arrays) + sum(array.nbytes for array in self.final)


@lru_cache(maxsize=64)
def _stored_leaves(layout: _SameLayout) -> tuple[Leaf, ...]:
    found: list[Leaf] = [REWARD, POLICY_VERSION, *layout.layout.observation, *layout.layout.action]
    if layout.layout.action_mask is not None:
        found.append(layout.layout.action_mask)
    if layout.layout.has_logp:
        found.append(LOGP)
    if layout.layout.has_value:
        found.append(VALUE)
    return (*found, *layout.layout.memory)


def stored_leaves(layout: Layout) -> tuple[Leaf, ...]:
    """The columns that come from arrays of the trajectory, one after the other."""
    return _stored_leaves(_SameLayout(layout))


class _SameLayout:
    """A layout as the key of a cache: layouts hold spaces, which cannot be hashed."""

    __slots__ = ("layout",)

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __hash__(self) -> int:
        return id(self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameLayout) and self.layout is other.layout


class LayoutBook:
    """Finds the layout of trajectories; equal ones get the same object."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Any, tuple[Trajectory, Layout]] = OrderedDict()
        self._by_schema: dict[bytes, Layout] = {}

    def check(self, trajectory: Trajectory) -> CheckedTrajectory:
        """The trajectory with its arrays; `ConfigError` says what is wrong with it."""
        layout = self.layout_of(trajectory)
        T = len(trajectory)
        _check_header(trajectory, T)
        arrays = tuple(_trajectory_arrays(trajectory, layout))
        for leaf, array in zip(stored_leaves(layout), arrays, strict=True):
            if type(array) is not np.ndarray or array.dtype != leaf.dtype or array.shape != (T, *leaf.shape):
                raise ConfigError(_mismatch(leaf, array, (T, *leaf.shape)))
        found = tuple(tree_leaves(layout.observation_space, trajectory.final_obs, "final_obs"))
        for leaf, array in zip(layout.observation, found, strict=True):
            is_array = isinstance(array, np.ndarray | np.generic)
            if not is_array or array.dtype != leaf.dtype or array.shape != leaf.shape:
                raise ConfigError(_mismatch(leaf, array, leaf.shape))
        return CheckedTrajectory(trajectory, layout, arrays, tuple(map(np.asarray, found)))

    def layout_of(self, trajectory: Trajectory) -> Layout:
        """The layout; trajectories of one environment share their spaces, so that this is mostly one look-up."""
        key = (
            trajectory.group,
            id(trajectory.observation_space),
            id(trajectory.action_space),
            None if trajectory.action_mask is None else trajectory.action_mask.shape[-1:],
            trajectory.logp is not None,
            trajectory.value is not None,
            _signature(trajectory.memory),
        )
        if key in self._by_key:
            self._by_key.move_to_end(key)
            return self._by_key[key][1]
        layout = _new_layout(trajectory)
        layout = self._by_schema.setdefault(layout.schema.serialize().to_pybytes(), layout)
        # The trajectory is kept beside the layout so that the ids in the key stay those of living objects.
        self._by_key[key] = (trajectory, layout)
        if len(self._by_key) > _MAX_CACHED_KEYS:
            self._by_key.popitem(last=False)
        return layout


def _new_layout(trajectory: Trajectory) -> Layout:
    mask, memory = trajectory.action_mask, trajectory.memory
    if mask is not None and mask.ndim != 2:
        raise ConfigError(f"action_mask has the shape {list(mask.shape)}, expected [T, number of actions]")
    return Layout(
        Kind.TRAJECTORY,
        trajectory.group,
        trajectory.observation_space,
        trajectory.action_space,
        None if mask is None else mask.shape[-1],
        trajectory.logp is not None,
        trajectory.value is not None,
        None if memory is None else space_of_tree(memory, 1),
    )


def _signature(tree: Tree | None) -> Any:
    """What decides the space of a memory: structure, dtypes and shapes without time."""
    if isinstance(tree, dict):
        return tuple((key, _signature(part)) for key, part in tree.items())
    if isinstance(tree, tuple):
        return (tuple, *map(_signature, tree))
    return None if tree is None else (tree.dtype, tree.shape[1:])


def _trajectory_arrays(trajectory: Trajectory, layout: Layout) -> Iterator[Any]:
    """In the order of `stored_leaves`."""
    yield trajectory.reward
    yield trajectory.policy_version
    yield from tree_leaves(layout.observation_space, trajectory.obs, "obs")
    yield from tree_leaves(layout.action_space, trajectory.action, "action")
    yield from (array for array in (trajectory.action_mask, trajectory.logp, trajectory.value) if array is not None)
    if layout.memory_space is not None and trajectory.memory is not None:
        yield from tree_leaves(layout.memory_space, trajectory.memory, "memory")


def _check_header(trajectory: Trajectory, num_steps: int) -> None:
    if num_steps == 0:
        raise ConfigError("a trajectory without steps cannot be stored")
    if trajectory.failed and not trajectory.truncated:
        raise ConfigError("a failed trajectory must be truncated")
    if not (isinstance(trajectory.trajectory_id, UUID) and isinstance(trajectory.env_id, UUID)):
        raise ConfigError("trajectory_id and env_id must be UUIDs")
    if not (0 <= trajectory.episode < 2**63 and 0 <= trajectory.first_step < 2**63 - num_steps):
        raise ConfigError(
            f"episode {trajectory.episode} and first step {trajectory.first_step} do not fit 64 bits, or are negative"
        )
    try:
        trajectory.agent_id.encode()
        trajectory.group.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"an agent's id or group is no valid text: {error}") from error


def _mismatch(leaf: Leaf, array: Any, shape: tuple[int, ...]) -> str:
    seen = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    return f"column {leaf.name!r} is {seen}, expected a NumPy array of {leaf.dtype} {list(shape)}"
