"""Checks what a sink is given, and takes it apart into stored blocks.

Trajectories are checked when they are written, not when they are flushed, so that a wrong one is refused where it came from.
They are checked column by column, many at once: a look at each array of each of them would cost more than to write it. Only
when something is wrong is it looked for one by one. Equal layouts are one object for all sinks of a process, and a schema is
worked out once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from relayrl.compiled.loader import kernels
from relayrl.data.arrow_arrays import pooled_arrays, space_of_tree, tree_leaves
from relayrl.data.columns import Trajectory
from relayrl.data.schema import Kind, Layout, Leaf
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, Space, Tree
from relayrl.errors import ConfigError
from relayrl.sinks.stored_block import StoredBlock, joined_arrays, stored_leaves
from relayrl.sinks.value_ranges import ValueRanges, name_of

_MAX_CACHED_KEYS = 256
_FIELDS = tuple(field.name for field in fields(Trajectory))
_IDENTICAL = ("group", "observation_space", "action_space")
_BLOCK_FIELDS = tuple(field.name for field in fields(TrajectoryBlock))
_OPTIONAL = ("action_mask", "logp", "value", "memory", "state", "final_mask")
_Columns: TypeAlias = dict[str, list[Any]]
"""Fields by name, each of many trajectories or of one block."""


class _Known:
    """A layout, and what is asked about it for every block."""

    def __init__(self, layout: Layout, example: Trajectory | TrajectoryBlock) -> None:
        self.layout = layout
        self.leaves = stored_leaves(layout)
        self.ranges = ValueRanges(layout)
        self._spaces = (example.observation_space, example.action_space)  # alive, since their ids are the key to this


@cache
def layout_book() -> LayoutBook:
    """The one of this process: a router's sink need not work out what another one's has."""
    return LayoutBook()


class LayoutBook:
    """Finds the layout of trajectories; equal ones get the same object. Any thread may ask."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Any, _Known] = OrderedDict()
        self._by_schema: dict[bytes, Layout] = {}

    def check(self, trajectories: Sequence[Trajectory]) -> list[StoredBlock]:
        """The trajectories as they will be stored; `ConfigError` says what is wrong with one of them."""
        if isinstance(trajectories, TrajectoryBlock):
            return (
                [_stored_columns(self._known(_key(trajectories), trajectories), trajectories)] if trajectories else []
            )
        given = list(trajectories)
        columns = _columns_of(given)
        if given and _are_alike(columns):
            return [_stored(self._known(_key(given[0]), given[0]), columns)]
        groups: dict[Any, list[Trajectory]] = {}
        for trajectory in given:
            groups.setdefault(_key(trajectory), []).append(trajectory)
        return [_stored(self._known(key, group[0]), _columns_of(group)) for key, group in groups.items()]

    def _known(self, key: Any, example: Trajectory | TrajectoryBlock) -> _Known:
        known = self._by_key.get(key)
        if known is None:
            layout = _new_layout(example)
            layout = self._by_schema.setdefault(layout.schema.serialize().to_pybytes(), layout)
            known = self._by_key[key] = _Known(layout, example)
            if len(self._by_key) > _MAX_CACHED_KEYS:
                self._by_key.popitem(last=False)
        return known


def _columns_of(trajectories: list[Trajectory]) -> _Columns:
    """Every field of the trajectories."""
    compiled = kernels()
    if compiled is not None:
        return dict(zip(_FIELDS, compiled.attributes(trajectories, _FIELDS), strict=True))
    return {name: [getattr(each, name) for each in trajectories] for name in _FIELDS}


def _are_alike(columns: _Columns) -> bool:
    """Whether trajectories surely have the same key; in a fraction of the time that their keys take."""
    compiled = kernels()
    if compiled is None:
        return False
    identical, optional = ([columns[name] for name in names] for names in (_IDENTICAL, _OPTIONAL))
    if not compiled.all_alike(identical, optional):
        return False
    trees = (columns[name] for name in ("action_mask", "memory", "state") if columns[name][0] is not None)
    return all(len(set(map(_signature, column))) == 1 for column in trees)


def _key(steps: Trajectory | TrajectoryBlock) -> Any:
    """Trajectories of one environment share their spaces, so that their layout is found by who they are."""
    mask, memory, state = steps.action_mask, steps.memory, steps.state
    return (
        steps.group,
        id(steps.observation_space),
        id(steps.action_space),
        None if mask is None else mask.shape[-1:],
        steps.logp is None,
        steps.value is None,
        None if memory is None else _signature(memory),
        None if state is None else _signature(state),
        steps.final_mask is None,
    )


def _signature(tree: Tree) -> Any:
    """What decides the space of a memory or state: structure, dtypes and shapes without time."""
    if isinstance(tree, dict):
        return tuple((key, _signature(part)) for key, part in tree.items())
    if isinstance(tree, tuple):
        return (tuple, *map(_signature, tree))
    return tree.dtype, tree.shape[1:]


def _new_layout(steps: Trajectory | TrajectoryBlock) -> Layout:
    mask, memory, state = steps.action_mask, steps.memory, steps.state
    if mask is not None and mask.ndim != 2:
        raise ConfigError(f"action_mask has the shape {list(mask.shape)}, expected [T, number of actions]")
    if mask is None and steps.final_mask is not None:
        raise ConfigError("a trajectory has final_mask without action_mask; give both, or no final_mask")
    return Layout(
        Kind.TRAJECTORY,
        steps.group,
        steps.observation_space,
        steps.action_space,
        None if mask is None else mask.shape[-1],
        steps.logp is not None,
        steps.value is not None,
        None if memory is None else space_of_tree(memory, 1),
        None if state is None else space_of_tree(state, 1),
        steps.final_mask is not None,
    )


def _stored_columns(known: _Known, block: TrajectoryBlock) -> StoredBlock:
    """A block's own columns; only looked at."""
    layout, headers = known.layout, block.headers
    _check_headers(headers, layout.group)
    if (block.state is None) != (block.final_state is None):
        raise ConfigError("a trajectory needs state and final_state, or neither")
    columns = {name: [getattr(block, name)] for name in _BLOCK_FIELDS}
    arrays = [column for (column,) in _step_columns(layout, columns)]
    finals = [column for (column,) in _final_columns(layout, columns)]
    num_rows = int(headers.num_steps.sum())
    whose = f"{len(headers)} trajectories, the first of them {name_of(headers, 0)}"
    _require(known.leaves, arrays, (num_rows,), whose)
    _require(layout.successor, finals, (len(headers),), whose, "final_")
    stored = StoredBlock(layout, headers, tuple(arrays), tuple(finals))
    known.ranges.check(stored)
    return stored


def _stored(known: _Known, given: _Columns) -> StoredBlock:
    """Trajectories of one layout, joined."""
    layout, headers = known.layout, _headers(given)
    _check_headers(headers, layout.group)
    if {each is None for each in given["state"]} != {each is None for each in given["final_state"]}:
        raise ConfigError("a trajectory needs state and final_state, or neither")
    columns, finals = _named_leaves(layout, headers, given)
    try:
        arrays = _joined(known.leaves, columns, headers.num_steps)
        last = _stacked(layout.successor, finals)
    except (TypeError, ValueError, AttributeError) as error:
        for i, length in enumerate(headers.num_steps.tolist()):
            whose = name_of(headers, i)
            _require(known.leaves, [parts[i] for parts in columns], (length,), whose)
            _require(layout.successor, [parts[i] for parts in finals], (), whose, "final_")
        raise ConfigError(f"columns do not fit their spaces: {error}") from error
    stored = StoredBlock(layout, headers, arrays, last)
    known.ranges.check(stored)
    return stored


def _named_leaves(
    layout: Layout, headers: TrajectoryHeaders, given: _Columns
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Step columns and final ones; `ConfigError` names the trajectory whose trees have another structure."""
    try:
        return _step_columns(layout, given), _final_columns(layout, given)
    except ConfigError as error:
        for i in range(len(headers)):
            one = {name: [column[i]] for name, column in given.items()}
            try:
                _step_columns(layout, one), _final_columns(layout, one)
            except ConfigError as own:
                raise ConfigError(f"{name_of(headers, i)}: {own}") from error
        raise


def _headers(given: _Columns) -> TrajectoryHeaders:
    columns = tuple(given[name] for name in ("episode", "first_step", "reward", "terminated", "truncated", "failed"))
    try:
        ids = (_uuid_bytes(given["trajectory_id"]), _uuid_bytes(given["env_id"]), given["agent_id"])
        return TrajectoryHeaders(*ids, *_header_numbers(columns))
    except AttributeError as error:
        raise ConfigError("trajectory_id and env_id must be UUIDs") from error
    except OverflowError as error:
        raise ConfigError("an episode's or first step's number does not fit 64 bits") from error


def _header_numbers(columns: tuple[list[Any], ...]) -> tuple[Array, ...]:
    """The columns as arrays: two of numbers, the lengths of a third, three of flags."""
    count, compiled = len(columns[0]), kernels()
    if compiled is not None:
        numbers, flags = np.empty((3, count), np.int64), np.empty((3, count), bool)
        if compiled.header_numbers(columns, numbers, flags):
            return (*numbers, *flags)
    episode, first_step, arrays, *bools = columns
    ints = (episode, first_step, list(map(len, arrays)))
    return (*(np.array(column, np.int64) for column in ints), *(np.array(column, bool) for column in bools))


def _uuid_bytes(ids: list[Any]) -> list[bytes]:
    compiled = kernels()
    found: list[bytes] | None = None if compiled is None else compiled.uuid_bytes(ids)
    return [each.int.to_bytes(16, "big") for each in ids] if found is None else found


def _check_headers(headers: TrajectoryHeaders, group: str) -> None:
    numbers = (headers.num_steps, headers.first_step, headers.episode, headers.truncated, headers.failed)
    compiled = kernels()
    if compiled is None or not compiled.headers_fit(*map(np.ascontiguousarray, numbers)):
        _check_numbers(headers)
    try:
        group.encode()
        "".join(headers.agent_ids).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"an agent's id or group is no valid text: {error}") from error


def _check_numbers(headers: TrajectoryHeaders) -> None:
    last = headers.first_step + headers.num_steps  # negative where it does not fit
    for is_wrong, what in (
        (headers.num_steps == 0, "has no steps"),
        (headers.failed & ~headers.truncated, "failed, so it must be truncated"),
        (
            np.minimum(np.minimum(headers.episode, headers.first_step), last) < 0,
            "has a number of an episode or step that is negative or does not fit 64 bits",
        ),
    ):
        if is_wrong.any():
            raise ConfigError(f"{name_of(headers, int(is_wrong.argmax()))} {what}")


def _step_columns(layout: Layout, given: _Columns) -> list[list[Any]]:
    """The arrays of every step column, in the order of `stored_leaves`."""
    found: list[list[Any]] = [given["reward"], given["policy_version"]]
    found += _leaf_columns(layout.observation_space, given["obs"], "obs")
    found += _leaf_columns(layout.action_space, given["action"], "action")
    if layout.action_mask is not None:
        found.append(given["action_mask"])
    if layout.has_logp:
        found.append(given["logp"])
    if layout.has_value:
        found.append(given["value"])
    if layout.memory_space is not None:
        found += _leaf_columns(layout.memory_space, given["memory"], "memory")
    if layout.state_space is not None:
        found += _leaf_columns(layout.state_space, given["state"], "state")
    return found


def _final_columns(layout: Layout, given: _Columns) -> list[list[Any]]:
    """In the order of `layout.successor`."""
    found = _leaf_columns(layout.observation_space, given["final_obs"], "final_obs")
    if layout.state_space is not None:
        found += _leaf_columns(layout.state_space, given["final_state"], "final_state")
    if layout.masks_successor:
        found.append(given["final_mask"])
    return found


def _leaf_columns(space: Space, trees: list[Any], name: str) -> list[list[Any]]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [trees]
    columns = [list(tree_leaves(space, tree, name)) for tree in trees]
    return [list(column) for column in zip(*columns, strict=True)]


def _joined(leaves: Sequence[Leaf], columns: list[list[Any]], num_steps: Array) -> tuple[Array, ...]:
    """The arrays of each leaf one after the other."""
    compiled = kernels()
    if compiled is not None:
        num_rows = int(num_steps.sum())
        outs = tuple(pooled_arrays([((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]))
        if compiled.join_rows(columns, num_steps, outs):
            return outs
    lengths = num_steps.tolist()
    return tuple(_joined_leaf(leaf, arrays, lengths) for leaf, arrays in zip(leaves, columns, strict=True))


def _joined_leaf(leaf: Leaf, arrays: list[Any], lengths: list[int]) -> Array:
    if arrays[0].dtype != leaf.dtype or set(map(type, arrays)) != {np.ndarray} or list(map(len, arrays)) != lengths:
        raise ValueError(leaf.name)
    return joined_arrays(arrays, leaf.shape)


def _stacked(leaves: Sequence[Leaf], columns: list[list[Any]]) -> tuple[Array, ...]:
    """The arrays of each leaf, which lack the axis of rows, as rows."""
    compiled = kernels()
    if compiled is not None:
        outs = tuple(
            np.empty((len(arrays), *leaf.shape), leaf.dtype) for leaf, arrays in zip(leaves, columns, strict=True)
        )
        if compiled.join_rows(columns, None, outs):
            return outs
    return tuple(_stacked_leaf(leaf, arrays) for leaf, arrays in zip(leaves, columns, strict=True))


def _stacked_leaf(leaf: Leaf, arrays: list[Any]) -> Array:
    """As `np.stack`, without its cost for each array."""
    if {(array.dtype, array.shape) for array in arrays} != {(leaf.dtype, leaf.shape)}:
        raise ValueError(leaf.name)
    if not leaf.shape:
        return np.array(arrays, leaf.dtype)
    return np.concatenate(arrays).reshape(len(arrays), *leaf.shape)


def _require(
    leaves: Sequence[Leaf], arrays: Sequence[Any], leading: tuple[int, ...], whose: str, prefix: str = ""
) -> None:
    """`ConfigError` names the first array that is not as its leaf says, and `whose` it is."""
    for leaf, array in zip(leaves, arrays, strict=True):
        shape = (*leading, *leaf.shape)
        if not isinstance(array, np.ndarray | np.generic) or array.shape != shape or array.dtype != leaf.dtype:
            is_array = isinstance(array, np.ndarray | np.generic)
            seen = f"{array.dtype} {list(array.shape)}" if is_array else f"a {type(array).__name__}"
            expected = f"expected a NumPy array of {leaf.dtype} {list(shape)}"
            raise ConfigError(f"{whose}: column {prefix + leaf.name!r} is {seen}, {expected}")
