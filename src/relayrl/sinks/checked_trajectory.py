"""What a sink takes: trajectories that fit their spaces, taken apart into the arrays that are stored.

A trajectory is checked when it is written, not when it is flushed, so that a wrong one is refused where it came from.
Equal layouts are one object within a sink, and its schema is worked out once.

Not its job: batches (`row_batches`) or database rows (`database_rows`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow_arrays import space_of_tree, tree_leaves
from relayrl.data.columns import Trajectory
from relayrl.data.schema import LOGP, POLICY_VERSION, REWARD, VALUE, Kind, Layout, Leaf
from relayrl.data.trees import Array, Space, Tree
from relayrl.errors import ConfigError

_MAX_CACHED_KEYS = 256
_MAX_CACHED_LENGTHS = 4096
_HEADER_BYTES = 256
"""Roughly what a trajectory costs beside its arrays."""


class CheckedTrajectory(NamedTuple):
    """A trajectory, its layout, and its arrays in the order of `stored_leaves`; `final` in that of `layout.successor`."""

    trajectory: Trajectory
    layout: Layout
    arrays: tuple[Array, ...]
    final: tuple[Array, ...]
    num_steps: int
    num_bytes: int


def stored_leaves(layout: Layout) -> tuple[Leaf, ...]:
    """The columns that come from arrays of the trajectory, one after the other."""
    found: list[Leaf] = [REWARD, POLICY_VERSION, *layout.observation, *layout.action]
    if layout.action_mask is not None:
        found.append(layout.action_mask)
    if layout.has_logp:
        found.append(LOGP)
    if layout.has_value:
        found.append(VALUE)
    return (*found, *layout.memory, *layout.state)


class _Known:
    """What a trajectory of a layout looks like; worked out once, so that checking one is a few comparisons."""

    def __init__(self, layout: Layout, example: Trajectory) -> None:
        self.layout = layout
        self.steps = stored_leaves(layout)
        self.dtypes = [leaf.dtype for leaf in self.steps]
        self.final_shapes = [leaf.shape for leaf in layout.successor]
        self.final_dtypes = [leaf.dtype for leaf in layout.successor]
        self.step_bytes, self.final_bytes = (
            sum(leaf.dtype.itemsize * leaf.width for leaf in leaves) for leaves in (self.steps, layout.successor)
        )
        self.observation_space, self.action_space = (
            space if isinstance(space, spaces.Dict | spaces.Tuple) else None
            for space in (layout.observation_space, layout.action_space)
        )
        """None where it is one array: what is no dict and no tuple needs no look at the space."""
        self._example = example  # keeps alive the spaces whose ids are the key to this
        self._shapes: dict[int, list[tuple[int, ...]]] = {}

    def shapes(self, num_steps: int) -> list[tuple[int, ...]]:
        """The shapes of all columns of a trajectory of that length."""
        found = self._shapes.get(num_steps)
        if found is None:
            if len(self._shapes) >= _MAX_CACHED_LENGTHS:
                self._shapes.clear()
            found = self._shapes[num_steps] = [(num_steps, *leaf.shape) for leaf in self.steps]
        return found


class LayoutBook:
    """Finds the layout of trajectories; equal ones get the same object."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Any, _Known] = OrderedDict()
        self._by_schema: dict[bytes, Layout] = {}

    def check(self, trajectory: Trajectory) -> CheckedTrajectory:
        """The trajectory with its arrays; `ConfigError` says what is wrong with it."""
        known = self._known(trajectory)
        num_steps = len(trajectory.reward)
        _check_header(trajectory, num_steps)
        arrays = _step_arrays(trajectory, known)
        final = _flat(known.observation_space, trajectory.final_obs, "final_obs")
        if trajectory.final_state is not None:
            final += _flat(known.layout.state_space, trajectory.final_state, "final_state")
        if not (
            _are(arrays, known.shapes(num_steps), known.dtypes) and _are(final, known.final_shapes, known.final_dtypes)
        ):
            raise ConfigError(_mismatch(known, num_steps, arrays, final))
        num_bytes = _HEADER_BYTES + num_steps * known.step_bytes + known.final_bytes
        return CheckedTrajectory(trajectory, known.layout, arrays, tuple(map(np.asarray, final)), num_steps, num_bytes)

    def _known(self, trajectory: Trajectory) -> _Known:
        """Trajectories of one environment share their spaces, so that this is mostly one look-up."""
        mask, memory, state = trajectory.action_mask, trajectory.memory, trajectory.state
        key = (
            trajectory.group,
            id(trajectory.observation_space),
            id(trajectory.action_space),
            None if mask is None else mask.shape[-1:],
            trajectory.logp is not None,
            trajectory.value is not None,
            None if memory is None else _signature(memory),
            None if state is None else _signature(state),
        )
        known = self._by_key.get(key)
        if known is None:
            layout = _new_layout(trajectory)
            layout = self._by_schema.setdefault(layout.schema.serialize().to_pybytes(), layout)
            known = self._by_key[key] = _Known(layout, trajectory)
            if len(self._by_key) > _MAX_CACHED_KEYS:
                self._by_key.popitem(last=False)
        return known


def _new_layout(trajectory: Trajectory) -> Layout:
    mask, memory, state = trajectory.action_mask, trajectory.memory, trajectory.state
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
        None if state is None else space_of_tree(state, 1),
    )


def _signature(tree: Tree) -> Any:
    """What decides the space of a memory or state: structure, dtypes and shapes without time."""
    if isinstance(tree, dict):
        return tuple((key, _signature(part)) for key, part in tree.items())
    if isinstance(tree, tuple):
        return (tuple, *map(_signature, tree))
    return tree.dtype, tree.shape[1:]


def _step_arrays(trajectory: Trajectory, known: _Known) -> tuple[Any, ...]:
    """In the order of `stored_leaves`."""
    found = [trajectory.reward, trajectory.policy_version]
    found += _flat(known.observation_space, trajectory.obs, "obs")
    found += _flat(known.action_space, trajectory.action, "action")
    if trajectory.action_mask is not None:
        found.append(trajectory.action_mask)
    if trajectory.logp is not None:
        found.append(trajectory.logp)
    if trajectory.value is not None:
        found.append(trajectory.value)
    if trajectory.memory is not None:
        found += _flat(known.layout.memory_space, trajectory.memory, "memory")
    if trajectory.state is not None:
        found += _flat(known.layout.state_space, trajectory.state, "state")
    return tuple(found)


def _flat(space: Space | None, tree: Tree, name: str) -> tuple[Any, ...]:
    return (tree,) if space is None else tuple(tree_leaves(space, tree, name))


def _check_header(trajectory: Trajectory, num_steps: int) -> None:
    if num_steps == 0:
        raise ConfigError("a trajectory without steps cannot be stored")
    if trajectory.failed and not trajectory.truncated:
        raise ConfigError("a failed trajectory must be truncated")
    if (trajectory.state is None) != (trajectory.final_state is None):
        raise ConfigError("a trajectory needs state and final_state, or neither")
    if not (isinstance(trajectory.trajectory_id, UUID) and isinstance(trajectory.env_id, UUID)):
        raise ConfigError("trajectory_id and env_id must be UUIDs")
    if not (0 <= trajectory.episode < 2**63 and 0 <= trajectory.first_step < 2**63 - num_steps):
        raise ConfigError(
            f"episode {trajectory.episode} and first step {trajectory.first_step} do not fit 64 bits, or are negative"
        )
    if trajectory.agent_id.isascii() and trajectory.group.isascii():
        return
    try:
        trajectory.agent_id.encode()
        trajectory.group.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"an agent's id or group is no valid text: {error}") from error


def _are(arrays: tuple[Any, ...], shapes: list[tuple[int, ...]], dtypes: list[np.dtype[Any]]) -> bool:
    try:
        return [array.shape for array in arrays] == shapes and [array.dtype for array in arrays] == dtypes
    except AttributeError:
        return False


def _mismatch(known: _Known, num_steps: int, arrays: tuple[Any, ...], final: tuple[Any, ...]) -> str:
    """What is wrong with the first array that is not as it should be."""
    expected = list(zip(known.steps, known.shapes(num_steps), arrays, strict=True))
    expected += zip(known.layout.successor, known.final_shapes, final, strict=True)
    for leaf, shape, array in expected:
        if not _are((array,), [shape], [leaf.dtype]):
            is_array = isinstance(array, np.ndarray | np.generic)
            seen = f"{array.dtype} {list(array.shape)}" if is_array else f"a {type(array).__name__}"
            return f"column {leaf.name!r} is {seen}, expected a NumPy array of {leaf.dtype} {list(shape)}"
    return "columns do not fit their spaces"
