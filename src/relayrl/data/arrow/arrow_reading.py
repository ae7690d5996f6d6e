"""An Arrow record batch as the block of trajectories that it holds, and single columns as NumPy's.

Reading believes nothing: what breaks a rule of the data model is a `DecodeError`. It assumes a batch that passed Arrow's
`validate()`, so that buffers are as long as rows and types say; everything beyond that (nulls, indices, offsets, text) is
checked here. Arrays are views of the batch, but for booleans, and read-only.

Not its job: which columns there are (`schema`), or writing them (`arrow_writing`).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.data.arrow.schema import EPISODE, FAILED, STEP, TERMINATED, TRUNCATED, VALID, Layout, Leaf
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array
from relayrl.errors import DecodeError


def from_batch(batch: pa.RecordBatch, layout: Layout) -> TrajectoryBlock:
    """The trajectories of a batch that has rows and has passed Arrow's own `validate()`, in order."""
    if not batch.schema.equals(layout.schema):
        raise DecodeError("the columns of a batch are not those of its layout")
    return from_own_batch(batch, layout)


def from_own_batch(batch: pa.RecordBatch, layout: Layout) -> TrajectoryBlock:
    """As `from_batch`, where batch and layout were read from the same schema, which is not compared again."""
    return _Split(batch, layout).block()


def count_rows(column: pa.Array) -> list[tuple[UUID, int]]:
    """Every trajectory in a column `trajectory_id`, with its number of rows."""
    indices, ids = names_from_arrow(column, "trajectory_id")
    names: list[str] = ids.to_pylist()
    begins = _run_begins(indices)
    lengths = np.diff(begins, append=len(indices)).tolist()
    return [(_uuid(names[i]), length) for i, length in zip(indices[begins].tolist(), lengths, strict=True)]


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
        if len(set(self._which.tolist())) != len(self._which):
            raise DecodeError("the rows of a trajectory do not follow each other")

    def block(self) -> TrajectoryBlock:
        layout, leading = self._layout, (self._batch.num_rows,)
        arrays = tuple(self._column(leaf.name, leaf, leading) for leaf in layout.stored)
        episode, step = self._column("episode", EPISODE, leading), self._column("step", STEP, leading)
        envs, agents = self._names("env_id"), self._names("agent_id")
        finals = self._finals()
        first_step, end_step = (finals.pop(-2), finals.pop()) if layout.knows_steps else (step[self._begins], None)
        counts_on = self._check_rows(episode, step, first_step, end_step)
        headers = TrajectoryHeaders(
            [_uuid(self._ids[which]).bytes for which in self._which.tolist()],
            [_uuid(env).bytes for env in envs],
            agents,
            episode[self._begins],
            first_step,
            self._ends - self._begins,
            *self._flags(),
            end_step=end_step,
        )
        return TrajectoryBlock(layout, headers, arrays, tuple(finals), None if counts_on else step)

    def _column(self, name: str, leaf: Any, leading: tuple[int, ...]) -> Array:
        return from_arrow(leaf, self._batch.column(name), leading)

    def _names(self, name: str) -> list[str]:
        """The name of each trajectory; all its rows must have it."""
        indices, names = names_from_arrow(self._batch.column(name), name)
        self._require_constant(indices, name)
        texts: list[str] = names.to_pylist()
        return [texts[i] for i in indices[self._begins].tolist()]

    def _require_constant(self, column: Array, name: str) -> None:
        changes = column[1:] != column[:-1]
        changes[self._begins[1:] - 1] = False
        if changes.any():
            raise DecodeError(f"column {name!r} changes within a trajectory")

    def _check_rows(self, episode: Array, step: Array, first_step: Array, end_step: Array | None) -> bool:
        """Whether all steps count on from every trajectory's first one."""
        if min(episode[self._begins].min(), first_step.min()) < 0:
            raise DecodeError("columns 'episode' and 'step' count from 0 on")
        self._require_constant(episode, "episode")
        ahead = np.diff(step)
        ahead[self._begins[1:] - 1] = 1
        counts_on = bool((ahead == 1).all()) and np.array_equal(step[self._begins], first_step)
        if end_step is None and not counts_on:
            raise DecodeError("column 'step' does not count on within a trajectory")
        # A difference that does not fit 64 bits is negative: steps begin at 0 or later.
        increases = counts_on or (bool((ahead > 0).all()) and not (step[self._begins] < first_step).any())
        if not increases or (end_step is not None and (end_step <= step[self._ends - 1]).any()):
            raise DecodeError("column 'step' does not increase within the steps that a trajectory covers")
        self._check_names(len(step))
        return counts_on

    def _check_names(self, num_rows: int) -> None:
        indices, names = names_from_arrow(self._batch.column("group"), "group")
        if any(names[i].as_py() != self._layout.group for i in np.flatnonzero(np.bincount(indices)).tolist()):
            raise DecodeError("column 'group' differs from the schema's metadata")
        if not self._column("valid", VALID, (num_rows,)).all():
            raise DecodeError("a trajectory has a row that is not valid")

    def _flags(self) -> list[Array]:
        """terminated, truncated, failed of each trajectory's last row; they stand nowhere else."""
        columns = [self._column(leaf.name, leaf, (self._batch.num_rows,)) for leaf in (TERMINATED, TRUNCATED, FAILED)]
        flags = [column[self._ends - 1] for column in columns]
        count = np.count_nonzero  # an eighth of the cost of `sum`
        if any(count(column) != count(flag) for column, flag in zip(columns, flags, strict=True)):
            raise DecodeError("a trajectory ends before its last row")
        _, truncated, failed = flags
        if (failed & ~truncated).any():
            raise DecodeError("a trajectory failed without being truncated")
        return flags

    def _finals(self) -> list[Array]:
        is_last = np.zeros(self._batch.num_rows, dtype=bool)
        is_last[self._ends - 1] = True
        records = successors_from_arrow(self._batch.column("successor"), is_last)
        pairs = zip(self._layout.successor, records, strict=True)
        return [from_arrow(leaf, record, (len(record),)) for leaf, record in pairs]


def _run_begins(indices: Array) -> Array:
    changes = np.flatnonzero(indices[1:] != indices[:-1]) + 1
    return np.concatenate(([0], changes)) if len(indices) else changes


def _uuid(name: str) -> UUID:
    try:
        found = UUID(name)
    except ValueError as error:
        raise DecodeError(f"an id is no UUID: {error}") from error
    if str(found) != name:
        raise DecodeError("an id is not written as UUIDs are")
    return found


def from_arrow(leaf: Leaf, column: pa.Array, leading: tuple[int, ...]) -> Array:
    """The column as a read-only array `[*leading, *leaf.shape]`; the column has `prod(leading)` rows."""
    _require_no_nulls(column, leaf.name)
    values = column
    if leaf.shape:
        values = column.values.slice(column.offset * leaf.width, len(column) * leaf.width)
        _require_no_nulls(values, leaf.name)
    array = _elements(values, leaf.dtype).reshape(*leading, *leaf.shape)
    array.flags.writeable = False
    return array


def _elements(values: pa.Array, dtype: np.dtype[Any]) -> Array:
    """The elements of an Arrow array of numbers or booleans that has no nulls."""
    if len(values) == 0:
        return np.empty(0, dtype=dtype)
    buffer = values.buffers()[1]
    if dtype.kind != "b":
        return np.frombuffer(buffer, dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize)
    end = values.offset + len(values)
    bits = np.frombuffer(buffer, dtype=np.uint8, count=-(-end // 8))
    return np.unpackbits(bits, count=end, bitorder="little")[values.offset :].view(bool)


def _require_no_nulls(column: pa.Array, name: str) -> None:
    if column.null_count:
        raise DecodeError(f"column {name!r} has {column.null_count} nulls; RelayRL data has none")


def names_from_arrow(column: pa.Array, name: str) -> tuple[Array, pa.Array]:
    """Indices and names of a dictionary-encoded column; the indices are within range, the names are text."""
    _require_no_nulls(column, name)
    names = column.dictionary
    _require_no_nulls(names, name)
    try:
        names.validate(full=True)
    except pa.ArrowException as error:
        raise DecodeError(f"the names of column {name!r} are damaged: {error}") from error
    indices = _elements(column.indices, np.dtype(column.type.index_type.to_pandas_dtype()))
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(names):
        raise DecodeError(f"column {name!r} points outside its {len(names)} names")
    return indices, names


def successors_from_arrow(column: pa.Array, expected: Array) -> list[pa.Array]:
    """The records' fields, `K` rows each; `DecodeError` unless there is one record exactly where `expected` says."""
    _require_no_nulls(column, "successor")
    offsets = np.frombuffer(
        column.buffers()[1], dtype=np.int32, count=len(column) + 1, offset=column.offset * np.dtype(np.int32).itemsize
    )
    first, last, rows = int(offsets[0]), int(offsets[-1]), np.flatnonzero(expected)
    is_right = np.array_equal(offsets[1:] != offsets[:-1], expected) and (offsets[rows + 1] - offsets[rows] == 1).all()
    if not is_right or first < 0 or last > len(column.values):
        raise DecodeError("column 'successor' does not have one observation wherever a lane ends or the block does")
    records = column.values.slice(first, last - first)
    _require_no_nulls(records, "successor")
    return list(records.flatten())
