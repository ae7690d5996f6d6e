"""Many trajectories as one Arrow record batch, and back.

A batch has the columns of `relayrl.data.schema` with the rows of whole trajectories one after the other, and the dictionary
of `trajectory_id` has an entry for each. Writing a trajectory at a time would cost a message and a dictionary for each.

Reading believes nothing: what breaks a rule of the data model is a `DecodeError`. Arrays are views of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.compiled.loader import kernels
from relayrl.data.arrow_arrays import (
    from_arrow,
    leaf_buffers,
    names_from_arrow,
    successors_from_arrow,
)
from relayrl.data.arrow_tree import Buffers
from relayrl.data.columns import Trajectory
from relayrl.data.schema import EPISODE, FAILED, STEP, TERMINATED, TRUNCATED, VALID, Layout
from relayrl.data.trajectory_block import TrajectoryHeaders
from relayrl.data.trees import Array
from relayrl.errors import DecodeError
from relayrl.sinks.header_columns import header_columns
from relayrl.sinks.stored_block import StoredBlock, by_layout, joined, stored_leaves


def to_batches(blocks: Sequence[StoredBlock], max_rows: int) -> Iterator[tuple[Layout, pa.RecordBatch]]:
    """Batches of at most `max_rows` rows, or of one longer trajectory; in order within each layout."""
    for group in by_layout(blocks):
        some: list[StoredBlock] = []
        for piece in (piece for block in group for piece in _pieces(block, max_rows)):
            if some and sum(each.num_rows for each in some) + piece.num_rows > max_rows:
                yield piece.layout, to_batch(joined(some))
                some = []
            some.append(piece)
        yield group[0].layout, to_batch(joined(some))


def _pieces(block: StoredBlock, max_rows: int) -> Iterator[StoredBlock]:
    """The block, or what it is cut into where it has too many rows."""
    if block.num_rows <= max_rows:
        yield block
        return
    first, num_rows = 0, 0
    for i, num_steps in enumerate(block.headers.num_steps.tolist()):
        if num_rows and num_rows + num_steps > max_rows:
            yield block.between(first, i)
            first, num_rows = i, 0
        num_rows += num_steps
    yield block.between(first, len(block))


def to_batch(block: StoredBlock) -> pa.RecordBatch:
    """All rows of a block; columns share its memory."""
    layout, headers, num_rows = block.layout, block.headers, block.num_rows
    leaves = zip(stored_leaves(layout), block.arrays, strict=True)
    columns: dict[str, Buffers] = {leaf.name: leaf_buffers(leaf, array, (num_rows,)) for leaf, array in leaves}
    given = header_columns(headers, num_rows)
    for name in ("episode", "step", "terminated", "truncated", "failed", "valid"):
        columns[name] = (None, getattr(given, name))
    columns["trajectory_id"] = (None, given.trajectory, *_uuid_texts(headers.trajectory_ids))
    columns["env_id"] = (None, given.world, *_uuid_texts(given.worlds))
    columns["agent_id"] = (None, given.agent, *_texts(given.agents))
    columns["group"] = (None, given.group, *_texts([layout.group]))
    finals = zip(layout.successor, block.finals, strict=True)
    records = (buffer for leaf, final in finals for buffer in leaf_buffers(leaf, final, (len(block),)))
    columns["successor"] = (None, given.offset, None, *records)
    counts = (num_rows, len(block), len(block), len(given.worlds), len(given.agents), 1)
    return layout.tree.batch(counts, columns)


def _texts(names: Sequence[str]) -> Buffers:
    """Arrow's array of strings."""
    encoded = [name.encode() for name in names]
    return None, np.array([0, *accumulate(map(len, encoded))], np.int32), b"".join(encoded)


def _uuid_texts(ids: list[bytes]) -> Buffers:
    """The text of each UUID, likewise."""
    texts, compiled = np.full((len(ids), 36), ord("-"), np.uint8), kernels()
    if compiled is not None:
        compiled.uuid_texts(ids, texts)
    else:
        digits = np.frombuffer(b"".join(ids).hex().encode(), np.uint8).reshape(-1, 32)
        for begin, end, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
            texts[:, begin + dashes : end + dashes] = digits[:, begin:end]
    return None, np.arange(0, 36 * len(ids) + 1, 36, dtype=np.int32), texts


def count_rows(column: pa.Array) -> list[tuple[UUID, int]]:
    """Every trajectory in a column `trajectory_id`, with its number of rows."""
    indices, ids = names_from_arrow(column, "trajectory_id")
    names: list[str] = ids.to_pylist()
    begins = _run_begins(indices)
    lengths = np.diff(begins, append=len(indices)).tolist()
    return [(_uuid(names[i]), length) for i, length in zip(indices[begins].tolist(), lengths, strict=True)]


def from_batch(batch: pa.RecordBatch, layout: Layout) -> Sequence[Trajectory]:
    """The trajectories of a batch, in order."""
    if batch.num_rows == 0:
        return []
    try:
        batch.validate()
    except pa.ArrowException as error:
        raise DecodeError(f"a column is damaged: {error}") from error
    if not batch.schema.equals(layout.schema):
        raise DecodeError("the columns of a batch are not those of its layout")
    return _Split(batch, layout).block().trajectories()


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

    def block(self) -> StoredBlock:
        layout, leading = self._layout, (self._batch.num_rows,)
        arrays = tuple(self._column(leaf.name, leaf, leading) for leaf in stored_leaves(layout))
        episode, step = self._column("episode", EPISODE, leading), self._column("step", STEP, leading)
        worlds, agents = self._names("env_id"), self._names("agent_id")
        self._check_rows(episode, step)
        headers = TrajectoryHeaders(
            [_uuid(self._ids[which]).bytes for which in self._which.tolist()],
            [_uuid(world).bytes for world in worlds],
            agents,
            episode[self._begins],
            step[self._begins],
            self._ends - self._begins,
            *self._flags(),
        )
        return StoredBlock(layout, headers, arrays, tuple(self._finals()))

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

    def _flags(self) -> list[Array]:
        """terminated, truncated, failed of each trajectory's last row; they stand nowhere else."""
        columns = [self._column(leaf.name, leaf, (self._batch.num_rows,)) for leaf in (TERMINATED, TRUNCATED, FAILED)]
        flags = [column[self._ends - 1] for column in columns]
        if any(int(column.sum()) != int(flag.sum()) for column, flag in zip(columns, flags, strict=True)):
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
    return np.flatnonzero(np.diff(indices, prepend=-1))


def _uuid(name: str) -> UUID:
    try:
        found = UUID(name)
    except ValueError as error:
        raise DecodeError(f"an id is no UUID: {error}") from error
    if str(found) != name:
        raise DecodeError("an id is not written as UUIDs are")
    return found
