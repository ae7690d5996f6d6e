"""Finds the layout of steps, and takes trajectories apart into blocks that fit it.

Equal layouts are one object in a process, and a schema is worked out once. Trajectories are checked when they are taken apart,
not when they are written, so that a wrong one is refused where it came from; column by column, many at once: a look at each
array of each of them would cost more than to write it. Only when something is wrong is it looked for one by one.

Not its job: whether values are in the range of their spaces (`sinks.buffered`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from types import NoneType
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.compiled.loader import row_kernels
from relayrl.data.arrow.schema import STEP, Kind, Layout, Leaf
from relayrl.data.arrow.space_json import space_of_tree
from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders, joined_arrays, pooled_arrays
from relayrl.data.trees import Array, Space, Tree, tree_leaves
from relayrl.errors import ConfigError

_MAX_CACHED_KEYS = 256
_FIELDS = tuple(field.name for field in fields(Trajectory))
_IDENTICAL = ("group", "observation_space", "action_space")
_OPTIONAL = ("action_mask", "logp", "value", "memory", "state", "final_mask", "step", "end_step")
_Columns: TypeAlias = dict[str, list[Any]]
"""Fields by name, each of many trajectories."""


@cache
def layout_book() -> LayoutBook:
    """The one of this process: a router's sink need not work out what another one's has."""
    return LayoutBook()


class LayoutBook:
    """Any thread may ask."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Any, tuple[Layout, Space, Space]] = OrderedDict()
        self._by_schema: dict[bytes, Layout] = {}

    def layout(self, kind: Kind, steps: Trajectory | Rollout) -> Layout:
        """The layout of steps, stored as `kind`."""
        key = _key(kind, steps)
        known = self._by_key.get(key)
        if known is None:
            layout = self.known(_new_layout(kind, steps))
            _, observation, action, _, _ = _described(steps)
            known = self._by_key[key] = layout, observation, action  # alive, since their ids are part of the key
            if len(self._by_key) > _MAX_CACHED_KEYS:
                self._by_key.popitem(last=False)
        return known[0]

    def blocks(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryBlock]:
        """The trajectories as blocks, one for each layout; `ConfigError` says what is wrong with one of them."""
        if isinstance(trajectories, TrajectoryBlock):
            return [self._fitting(trajectories)] if trajectories else []
        given = list(trajectories)
        columns = _columns_of(given)
        if given and _are_alike(columns):
            return [_block(self.layout(Kind.TRAJECTORY, given[0]), columns)]
        groups: dict[Any, list[Trajectory]] = {}
        for trajectory in given:
            groups.setdefault(_key(Kind.TRAJECTORY, trajectory), []).append(trajectory)
        return [_block(self.layout(Kind.TRAJECTORY, group[0]), _columns_of(group)) for group in groups.values()]

    def _fitting(self, block: TrajectoryBlock) -> TrajectoryBlock:
        """The block itself, only looked at, with the one object of its layout."""
        layout, headers = self.known(block.layout), block.headers
        check_headers(headers, layout.group)
        whose = f"{len(headers)} trajectories, the first of them {name_of(headers, 0)}"
        _require(layout.stored, block.arrays, (int(headers.num_steps.sum()),), whose)
        _require(layout.followed, block.finals, (len(headers),), whose, "final_")
        if (headers.end_step is None) == layout.knows_steps or (headers.end_step is None and block.steps is not None):
            raise ConfigError(f"{whose}: their layout and their headers do not both say which steps they cover")
        if block.steps is not None:
            _require([STEP], [block.steps], (block.num_rows,), whose)
        check_steps(headers, block.steps)
        return block if layout is block.layout else replace(block, layout=layout)

    def known(self, layout: Layout) -> Layout:
        """The one object for layouts that are equal to this one."""
        return self._by_schema.setdefault(layout.fingerprint, layout)


def _columns_of(trajectories: list[Trajectory]) -> _Columns:
    """Every field of the trajectories."""
    compiled = row_kernels()
    if compiled is not None:
        return dict(zip(_FIELDS, compiled.attributes(trajectories, _FIELDS), strict=True))
    return {name: [getattr(each, name) for each in trajectories] for name in _FIELDS}


def _are_alike(columns: _Columns) -> bool:
    """Whether trajectories surely have the same key; in a fraction of the time that their keys take."""
    compiled = row_kernels()
    if compiled is None:
        return False
    identical, optional = ([columns[name] for name in names] for names in (_IDENTICAL, _OPTIONAL))
    if not compiled.all_alike(identical, optional):
        return False
    trees = (columns[name] for name in ("action_mask", "memory", "state") if columns[name][0] is not None)
    return all(len({_signature(tree, 1) for tree in column}) == 1 for column in trees)


def _key(kind: Kind, steps: Trajectory | Rollout) -> Any:
    """Steps of one environment share their spaces, so that their layout is found by who they are."""
    group, observation, action, last_mask, num_leading = _described(steps)
    mask, memory, state = steps.action_mask, steps.memory, steps.state
    return (
        kind,
        group,
        id(observation),
        id(action),
        None if mask is None else mask.shape[num_leading:],
        steps.logp is None,
        steps.value is None,
        None if memory is None else _signature(memory, num_leading),
        None if state is None else _signature(state, num_leading),
        last_mask is None,
        _knows_steps(kind, steps),
    )


def _knows_steps(kind: Kind, steps: Trajectory | Rollout) -> bool:
    """A rollout's trajectories know the environment's steps where it has a clock, or where its only agent is one."""
    if isinstance(steps, Trajectory):
        return steps.knows_steps
    return steps.env_step is not None or (kind is Kind.TRAJECTORY and len(steps.header.agent_ids) == 1)


def _described(steps: Trajectory | Rollout) -> tuple[str, Space, Space, Array | None, int]:
    """Group, spaces, the masks of what followed, and how many axes stand before those of one step."""
    if isinstance(steps, Rollout):
        header = steps.header
        return header.group, header.observation_space, header.action_space, steps.successors.action_mask, 2
    return steps.group, steps.observation_space, steps.action_space, steps.final_mask, 1


def _signature(tree: Tree, num_leading: int) -> Any:
    """What decides the space of a memory or state: structure, dtypes and shapes without time."""
    if isinstance(tree, dict):
        return tuple((key, _signature(part, num_leading)) for key, part in tree.items())
    if isinstance(tree, tuple):
        return (tuple, *(_signature(part, num_leading) for part in tree))
    return tree.dtype, tree.shape[num_leading:]


def _new_layout(kind: Kind, steps: Trajectory | Rollout) -> Layout:
    group, observation, action, last_mask, num_leading = _described(steps)
    mask, memory, state = steps.action_mask, steps.memory, steps.state
    if mask is not None and mask.ndim != num_leading + 1:
        raise ConfigError(f"action_mask has the shape {list(mask.shape)}, expected [T, number of actions]")
    if mask is None and last_mask is not None:
        raise ConfigError("an action mask is given for what followed the steps (final_mask), but none for the steps")
    return Layout(
        kind,
        group,
        observation,
        action,
        None if mask is None else mask.shape[-1],
        steps.logp is not None,
        steps.value is not None,
        None if memory is None else space_of_tree(memory, num_leading),
        None if state is None else space_of_tree(state, num_leading),
        last_mask is not None,
        _knows_steps(kind, steps),
    )


def _block(layout: Layout, given: _Columns) -> TrajectoryBlock:
    """Trajectories of one layout, joined."""
    headers = _headers(given)
    steps = None
    if layout.knows_steps:
        headers, steps = _numbered(headers, given)
    check_headers(headers, layout.group)
    check_steps(headers, steps)
    if {each is None for each in given["state"]} != {each is None for each in given["final_state"]}:
        raise ConfigError("a trajectory needs state and final_state, or neither")
    columns, finals = _named_leaves(layout, headers, given)
    try:
        arrays = _joined(layout.stored, columns, headers.num_steps)
        last = _stacked(layout.followed, finals)
    except (TypeError, ValueError, AttributeError) as error:
        for i, length in enumerate(headers.num_steps.tolist()):
            whose = name_of(headers, i)
            _require(layout.stored, [parts[i] for parts in columns], (length,), whose)
            _require(layout.followed, [parts[i] for parts in finals], (), whose, "final_")
        raise ConfigError(f"columns do not fit their spaces: {error}") from error
    return TrajectoryBlock(layout, headers, arrays, last, steps)


def _numbered(headers: TrajectoryHeaders, given: _Columns) -> tuple[TrajectoryHeaders, Array | None]:
    """The headers with where trajectories end, and the steps of all rows where some do not count on."""
    steps = None
    if set(map(type, given["step"])) != {NoneType}:
        firsts, lengths = headers.first_step.tolist(), headers.num_steps.tolist()
        parts = []
        for k, (each, first, length) in enumerate(zip(given["step"], firsts, lengths, strict=True)):
            if each is not None:
                _require([STEP], [each], (length,), name_of(headers, k))
            parts.append(first + np.arange(length) if each is None else each)
        steps = np.concatenate(parts)
    ends = given["end_step"]
    if None in ends:
        last = headers.first_step + headers.num_steps - 1 if steps is None else steps[headers.ends - 1]
        behind = (last + 1 + headers.failed).tolist()
        ends = [own if end is None else end for end, own in zip(ends, behind, strict=True)]
    try:
        return replace(headers, end_step=np.array(ends, np.int64)), steps
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"an end_step is no number of 64 bits: {error}") from error


def check_steps(headers: TrajectoryHeaders, steps: Array | None) -> None:
    """`ConfigError` if steps do not increase, or not between first step and end."""
    if headers.end_step is None or not len(headers):
        return
    ends = headers.ends
    last = headers.first_step + headers.num_steps - 1 if steps is None else steps[ends - 1]
    is_wrong = headers.end_step <= last
    if steps is not None:
        ahead = np.diff(steps) > 0
        ahead[ends[:-1] - 1] = True
        if not ahead.all():
            k = int(np.searchsorted(ends, int(np.argmin(ahead)), "right"))
            raise ConfigError(f"{name_of(headers, k)}: column 'step' does not increase")
        is_wrong |= steps[ends - headers.num_steps] < headers.first_step
    if is_wrong.any():
        k = int(is_wrong.argmax())
        raise ConfigError(f"{name_of(headers, k)} has steps that are not between first_step and end_step")


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
    count, compiled = len(columns[0]), row_kernels()
    if compiled is not None:
        numbers, flags = np.empty((3, count), np.int64), np.empty((3, count), bool)
        if compiled.header_numbers(columns, numbers, flags):
            return (*numbers, *flags)
    episode, first_step, arrays, *bools = columns
    ints = (episode, first_step, list(map(len, arrays)))
    return (*(np.array(column, np.int64) for column in ints), *(np.array(column, bool) for column in bools))


def _uuid_bytes(ids: list[Any]) -> list[bytes]:
    compiled = row_kernels()
    found: list[bytes] | None = None if compiled is None else compiled.uuid_bytes(ids)
    return [each.int.to_bytes(16, "big") for each in ids] if found is None else found


def check_headers(headers: TrajectoryHeaders, group: str) -> None:
    """`ConfigError` if a trajectory has no steps, or numbers or names that cannot be stored."""
    numbers = (headers.num_steps, headers.first_step, headers.episode, headers.truncated, headers.failed)
    compiled = row_kernels()
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
    """The arrays of every step column, in the order of `Layout.stored`."""
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
    """In the order of `layout.followed`."""
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
    compiled = row_kernels()
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
    compiled = row_kernels()
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


def name_of(headers: TrajectoryHeaders, k: int) -> str:
    """The `k`-th trajectory, for an error."""
    trajectory_id, env_id = (UUID(bytes=ids[k]) for ids in (headers.trajectory_ids, headers.env_ids))
    return _name(trajectory_id, headers.agent_ids[k], env_id)


def trajectory_name(trajectory: Trajectory) -> str:
    """The same of a trajectory by itself."""
    return _name(trajectory.trajectory_id, trajectory.agent_id, trajectory.env_id)


def _name(trajectory_id: UUID, agent_id: str, env_id: UUID) -> str:
    return f"trajectory {trajectory_id} of agent {agent_id!r} in environment {env_id}"
