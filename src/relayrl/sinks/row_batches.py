"""Many trajectories as one Arrow record batch, and back.

A batch has the columns of `relayrl.data.schema` with the rows of whole trajectories one after the other, and the dictionary
of `trajectory_id` has an entry for each. Writing a trajectory at a time would cost a message and a dictionary for each.

Reading believes nothing: what breaks a rule of the data model is a `DecodeError`. Arrays are views of the batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import prod
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.data.arrow_arrays import (
    from_arrow,
    names_from_arrow,
    names_to_arrow,
    successors_from_arrow,
    successors_to_arrow,
    to_arrow,
)
from relayrl.data.columns import Trajectory
from relayrl.data.schema import EPISODE, FAILED, GROUP, ID, STEP, TERMINATED, TRUNCATED, VALID, Layout, Leaf
from relayrl.data.trees import Array, unflatten
from relayrl.errors import DecodeError
from relayrl.sinks.checked_trajectory import CheckedTrajectory, stored_leaves


class Workspace:
    """Memory for the columns of a batch, used again for the next instead of fresh pages for each."""

    def __init__(self) -> None:
        self._memory: dict[str, Array] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array, valid until the same name is asked for again."""
        num_bytes = prod(shape) * dtype.itemsize
        memory = self._memory.get(name)
        if memory is None or len(memory) < num_bytes:
            memory = self._memory[name] = np.empty(num_bytes + num_bytes // 4, np.uint8)
        return memory[:num_bytes].view(dtype).reshape(shape)


def to_batches(
    records: Sequence[CheckedTrajectory], max_rows: int, workspace: Workspace
) -> Iterator[tuple[Layout, pa.RecordBatch]]:
    """Batches of at most `max_rows` rows, or of one longer trajectory; in order within each layout.

    A batch is valid until the next one is asked for: they share the workspace.
    """
    by_layout: dict[int, list[CheckedTrajectory]] = {}
    for record in records:
        by_layout.setdefault(id(record.layout), []).append(record)
    for group in by_layout.values():
        begin, num_rows = 0, 0
        for i, record in enumerate(group):
            if num_rows and num_rows + record.num_steps > max_rows:
                yield record.layout, to_batch(group[begin:i], workspace)
                begin, num_rows = i, 0
            num_rows += record.num_steps
        yield group[0].layout, to_batch(group[begin:], workspace)


def to_batch(records: Sequence[CheckedTrajectory], workspace: Workspace) -> pa.RecordBatch:
    """One batch of trajectories that have the same layout."""
    layout, trajectories = records[0].layout, [record.trajectory for record in records]
    lengths = np.array([record.num_steps for record in records])
    num_rows, last = int(lengths.sum()), np.cumsum(lengths) - 1
    leading = (num_rows,)
    columns = {}
    joint = zip(*(record.arrays for record in records), strict=True)
    for leaf, arrays in zip(stored_leaves(layout), joint, strict=True):
        joined = workspace.empty(leaf.name, (*leading, *leaf.shape), leaf.dtype)
        np.concatenate(arrays, out=joined)
        columns[leaf.name] = to_arrow(leaf, joined, leading)
    flags = zip(*((t.terminated, t.truncated, t.failed) for t in trajectories), strict=True)
    for leaf, on_last_row in zip((TERMINATED, TRUNCATED, FAILED), flags, strict=True):
        flag = np.zeros(num_rows, dtype=bool)
        flag[last] = on_last_row
        columns[leaf.name] = to_arrow(leaf, flag, leading)
    columns["valid"] = to_arrow(VALID, np.ones(num_rows, dtype=bool), leading)

    def repeated(values: Array) -> Array:
        return np.repeat(values, lengths)

    columns["episode"] = to_arrow(EPISODE, repeated(np.array([t.episode for t in trajectories], np.int64)), leading)
    begins = np.array([t.first_step for t in trajectories], np.int64) - (last + 1 - lengths)
    columns["step"] = to_arrow(STEP, repeated(begins) + np.arange(num_rows), leading)
    which = np.arange(len(records), dtype=np.int32)
    columns["trajectory_id"] = _uuids_to_arrow(repeated(which), [t.trajectory_id.int for t in trajectories])
    worlds, world_of = _numbered([trajectory.env_id.int for trajectory in trajectories])
    columns["env_id"] = _uuids_to_arrow(repeated(world_of), worlds)
    agents, agent_of = _numbered([trajectory.agent_id for trajectory in trajectories])
    columns["agent_id"] = names_to_arrow(ID, repeated(agent_of), agents)
    columns["group"] = names_to_arrow(GROUP, np.zeros(num_rows, dtype=np.int8), [layout.group])
    columns["successor"] = _successors(layout, records, last, num_rows)
    schema = layout.schema
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _successors(layout: Layout, records: Sequence[CheckedTrajectory], last: Array, num_rows: int) -> pa.Array:
    finals = [
        to_arrow(leaf, _stacked([record.final[i] for record in records], leaf), (len(records),))
        for i, leaf in enumerate(layout.successor)
    ]
    return successors_to_arrow(layout.schema.field("successor").type, last, num_rows, finals)


def _stacked(arrays: list[Array], leaf: Leaf) -> Array:
    """As `np.stack`, without its cost for each array."""
    if not leaf.shape:
        return np.array(arrays, leaf.dtype)
    return np.concatenate(arrays).reshape(len(arrays), *leaf.shape)


def _uuids_to_arrow(indices: Array, ids: Sequence[int]) -> pa.Array:
    """As `names_to_arrow` with the text of each UUID, a fifth of the time."""
    digits = np.frombuffer("".join([f"{number:032x}" for number in ids]).encode(), np.uint8).reshape(-1, 32)
    texts = np.full((len(ids), 36), ord("-"), np.uint8)
    for begin, end, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        texts[:, begin + dashes : end + dashes] = digits[:, begin:end]
    offsets = np.arange(0, 36 * len(ids) + 1, 36, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts.reshape(-1))]
    names = pa.Array.from_buffers(pa.string(), len(ids), buffers)
    return pa.DictionaryArray.from_buffers(ID, len(indices), [None, pa.py_buffer(indices)], names)


def _numbered(values: Sequence[Hashable]) -> tuple[list[Any], Array]:
    """The distinct values in order of appearance, and which of them each is."""
    numbers: dict[Hashable, int] = {}
    indices = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(indices, dtype=np.int32)


def count_rows(column: pa.Array) -> list[tuple[UUID, int]]:
    """Every trajectory in a column `trajectory_id`, with its number of rows."""
    indices, ids = names_from_arrow(column, "trajectory_id")
    names: list[str] = ids.to_pylist()
    begins = _run_begins(indices)
    lengths = np.diff(begins, append=len(indices)).tolist()
    return [(_uuid(names[i]), length) for i, length in zip(indices[begins].tolist(), lengths, strict=True)]


def from_batch(batch: pa.RecordBatch, layout: Layout) -> list[Trajectory]:
    """The trajectories of a batch, in order."""
    if batch.num_rows == 0:
        return []
    try:
        batch.validate()
    except pa.ArrowException as error:
        raise DecodeError(f"a column is damaged: {error}") from error
    if not batch.schema.equals(layout.schema):
        raise DecodeError("the columns of a batch are not those of its layout")
    return _Split(batch, layout).trajectories()


class _Split:
    """One batch, its columns as NumPy, and where its trajectories begin."""

    def __init__(self, batch: pa.RecordBatch, layout: Layout) -> None:
        self._batch = batch
        self._layout = layout
        indices, ids = names_from_arrow(batch.column("trajectory_id"), "trajectory_id")
        self._ids: list[str] = ids.to_pylist()
        self._begins = _run_begins(indices)
        self._ends = np.append(self._begins[1:], batch.num_rows)
        self._which = indices[self._begins]
        if len(np.unique(self._which)) != len(self._which):
            raise DecodeError("the rows of a trajectory do not follow each other")

    def trajectories(self) -> list[Trajectory]:
        layout, leading = self._layout, (self._batch.num_rows,)
        columns = {leaf.name: self._column(leaf.name, leaf, leading) for leaf in stored_leaves(layout)}
        episode, step = self._column("episode", EPISODE, leading), self._column("step", STEP, leading)
        worlds, agents = self._names("env_id"), self._names("agent_id")
        self._check_rows(episode, step)
        flags = self._flags()
        finals = self._finals()
        found = []
        pairs = zip(self._begins.tolist(), self._ends.tolist(), self._which.tolist(), strict=True)
        for k, (begin, end, which) in enumerate(pairs):
            rows = slice(begin, end)
            last = (leaf[k, ...] for leaf in finals)
            found.append(
                Trajectory(
                    trajectory_id=_uuid(self._ids[which]),
                    env_id=_uuid(worlds[k]),
                    agent_id=agents[k],
                    group=layout.group,
                    observation_space=layout.observation_space,
                    action_space=layout.action_space,
                    episode=int(episode[begin]),
                    first_step=int(step[begin]),
                    final_obs=unflatten(layout.observation_space, last),
                    final_state=None if layout.state_space is None else unflatten(layout.state_space, last),
                    terminated=bool(flags["terminated"][k]),
                    truncated=bool(flags["truncated"][k]),
                    failed=bool(flags["failed"][k]),
                    **step_fields(layout, {name: column[rows] for name, column in columns.items()}),
                )
            )
        return found

    def _column(self, name: str, leaf: Any, leading: tuple[int, ...]) -> Array:
        return from_arrow(leaf, self._batch.column(name), leading)

    def _names(self, name: str) -> list[str]:
        """The name of each trajectory; all its rows must have it."""
        indices, names = names_from_arrow(self._batch.column(name), name)
        self._require_constant(indices, name)
        texts: list[str] = names.to_pylist()
        return [texts[i] for i in indices[self._begins].tolist()]

    def _require_constant(self, column: Array, name: str) -> None:
        inner = np.ones(len(column), dtype=bool)
        inner[self._begins] = False
        if (column[1:] != column[:-1])[inner[1:]].any():
            raise DecodeError(f"column {name!r} changes within a trajectory")

    def _check_rows(self, episode: Array, step: Array) -> None:
        self._require_constant(episode, "episode")
        self._require_constant(step - np.arange(len(step)), "step")
        indices, names = names_from_arrow(self._batch.column("group"), "group")
        if any(names[i].as_py() != self._layout.group for i in np.unique(indices).tolist()):
            raise DecodeError("column 'group' differs from the schema's metadata")
        if not self._column("valid", VALID, (len(step),)).all():
            raise DecodeError("a trajectory has a row that is not valid")

    def _flags(self) -> dict[str, Array]:
        """The flags of each trajectory's last row; they stand nowhere else."""
        last = self._ends - 1
        flags = {}
        for leaf in (TERMINATED, TRUNCATED, FAILED):
            column = self._column(leaf.name, leaf, (self._batch.num_rows,))
            flags[leaf.name] = column[last]
            if int(column.sum()) != int(flags[leaf.name].sum()):
                raise DecodeError("a trajectory ends before its last row")
        if (flags["failed"] & ~flags["truncated"]).any():
            raise DecodeError("a trajectory failed without being truncated")
        return flags

    def _finals(self) -> list[Array]:
        is_last = np.zeros(self._batch.num_rows, dtype=bool)
        is_last[self._ends - 1] = True
        records = successors_from_arrow(self._batch.column("successor"), is_last)
        pairs = zip(self._layout.successor, records, strict=True)
        return [from_arrow(leaf, record, (len(record),)) for leaf, record in pairs]


def step_fields(layout: Layout, columns: dict[str, Array]) -> dict[str, Any]:
    """The fields of `Trajectory` that are columns, from columns by name."""
    memory, state = layout.memory_space, layout.state_space
    return {
        "obs": unflatten(layout.observation_space, (columns[leaf.name] for leaf in layout.observation)),
        "action": unflatten(layout.action_space, (columns[leaf.name] for leaf in layout.action)),
        "action_mask": columns.get("action_mask"),
        "reward": columns["reward"],
        "policy_version": columns["policy_version"],
        "logp": columns.get("logp"),
        "value": columns.get("value"),
        "memory": None if memory is None else unflatten(memory, (columns[leaf.name] for leaf in layout.memory)),
        "state": None if state is None else unflatten(state, (columns[leaf.name] for leaf in layout.state)),
    }


def _run_begins(indices: Array) -> Array:
    return np.flatnonzero(np.diff(indices, prepend=-1))


def _uuid(name: str) -> UUID:
    try:
        found = UUID(name)
    except ValueError as error:
        raise DecodeError(f"an id is no UUID: {error}") from error
    if str(found) != name:
        raise DecodeError("an id is not written as UUIDs are")
    return found
