"""A block of trajectories as one Arrow record batch, and back: what sinks write and what one trajectory is encoded as.

A batch has the columns of `relayrl.data.arrow.schema` with the rows of whole trajectories one after the other, and the
dictionary of `trajectory_id` has an entry for each. Writing a trajectory at a time would cost a message and a dictionary for
each.

A batch shares memory with its block. What only headers say (who, which episode and step, how it ended) gets a value for every
row, in one piece of memory from Arrow's pool; flags are bits there.

Reading believes nothing: what breaks a rule of the data model is a `DecodeError`. Arrays are views of the batch and read-only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.compiled.loader import kernels
from relayrl.data.arrow.arrow_arrays import from_arrow, names_from_arrow, successors_from_arrow, to_arrow
from relayrl.data.arrow.schema import EPISODE, FAILED, GROUP, ID, STEP, TERMINATED, TRUNCATED, VALID, Layout
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders, by_layout, joined_blocks
from relayrl.data.trees import Array
from relayrl.errors import DecodeError

_KINDS = tuple(map(np.dtype, (np.int64, np.int64, *[np.int32] * 4, np.int8, *[np.uint8] * 4)))


def to_batches(blocks: Sequence[TrajectoryBlock], max_rows: int) -> Iterator[tuple[Layout, pa.RecordBatch]]:
    """Batches of at most `max_rows` rows, or of one longer trajectory; in order within each layout."""
    for group in by_layout(blocks):
        some: list[TrajectoryBlock] = []
        for piece in (piece for block in group for piece in _pieces(block, max_rows)):
            if some and sum(each.num_rows for each in some) + piece.num_rows > max_rows:
                yield piece.layout, to_batch(joined_blocks(some))
                some = []
            some.append(piece)
        yield group[0].layout, to_batch(joined_blocks(some))


def _pieces(block: TrajectoryBlock, max_rows: int) -> Iterator[TrajectoryBlock]:
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


def to_batch(block: TrajectoryBlock) -> pa.RecordBatch:
    """All rows of a block; columns share its memory."""
    layout, headers, num_rows = block.layout, block.headers, block.num_rows
    leaves = zip(layout.stored, block.arrays, strict=True)
    columns = {leaf.name: to_arrow(leaf, array, (num_rows,)) for leaf, array in leaves}
    given = header_columns(headers, num_rows)
    for leaf in (EPISODE, STEP, TERMINATED, TRUNCATED, FAILED, VALID):
        columns[leaf.name] = pa.Array.from_buffers(leaf.arrow_type, num_rows, [None, getattr(given, leaf.name)])
    for name, kind, numbers, texts in (
        ("trajectory_id", ID, given.trajectory, _uuid_texts(headers.trajectory_ids)),
        ("env_id", ID, given.env, _uuid_texts(given.envs)),
        ("agent_id", ID, given.agent, pa.array(given.agents, pa.string())),
        ("group", GROUP, given.group, pa.array([layout.group], pa.string())),
    ):
        columns[name] = pa.DictionaryArray.from_buffers(kind, num_rows, [None, numbers], texts)
    finals = zip(layout.successor, block.finals, strict=True)
    records = [to_arrow(leaf, final, (len(block),)) for leaf, final in finals]
    kind = layout.schema.field("successor").type
    followed = pa.Array.from_buffers(kind.value_type, len(block), [None], children=records)
    columns["successor"] = pa.Array.from_buffers(kind, num_rows, [None, given.offset], children=[followed])
    return pa.RecordBatch.from_arrays([columns[name] for name in layout.schema.names], schema=layout.schema)


def _uuid_texts(ids: list[bytes]) -> pa.Array:
    """The text of each UUID."""
    texts, compiled = np.full((len(ids), 36), ord("-"), np.uint8), kernels()
    if compiled is not None:
        compiled.uuid_texts(ids, texts)
    else:
        digits = np.frombuffer(b"".join(ids).hex().encode(), np.uint8).reshape(-1, 32)
        for begin, end, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
            texts[:, begin + dashes : end + dashes] = digits[:, begin:end]
    offsets = np.arange(0, 36 * len(ids) + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


@dataclass(frozen=True, slots=True, eq=False)
class HeaderColumns:
    """`R` rows of `K` trajectories, as Arrow's buffers. Names are numbers: of the trajectory, of `envs` and of `agents`."""

    envs: list[bytes]
    agents: list[str]
    episode: pa.Buffer  # [R] int64
    step: pa.Buffer  # [R] int64
    trajectory: pa.Buffer  # [R] int32
    env: pa.Buffer  # [R] int32
    agent: pa.Buffer  # [R] int32
    offset: pa.Buffer  # [R + 1] int32, how many trajectories have ended before each row
    group: pa.Buffer  # [R] int8, always 0: there is one
    terminated: pa.Buffer  # [R] bits, as the next two: set on the last row where the trajectory ended so
    truncated: pa.Buffer
    failed: pa.Buffer
    valid: pa.Buffer  # [R] bits, all set


def header_columns(headers: TrajectoryHeaders, num_rows: int) -> HeaderColumns:
    """The columns of trajectories whose lengths add up to `num_rows`."""
    (envs, env), (agents, agent) = _numbered(headers.env_ids), _numbered(headers.agent_ids)
    numbers = (headers.num_steps, headers.episode, headers.first_step, env, agent)
    flags = (headers.terminated, headers.truncated, headers.failed)
    num_bits = (num_rows + 7) // 8
    sizes = (*[8 * num_rows] * 2, *[4 * num_rows] * 3, 4 * num_rows + 4, num_rows, *[num_bits] * 4)
    begins = tuple(accumulate((size + 63 & ~63 for size in sizes), initial=0))  # as Arrow aligns
    memory, compiled = pa.allocate_buffer(begins[-1]), kernels()
    if compiled is not None:
        given = tuple(map(np.ascontiguousarray, (*numbers, *flags)))
        compiled.spread_headers(given, num_rows, begins[:-1], memory)
    else:
        places = zip(begins, sizes, _KINDS, strict=False)
        outs = [np.frombuffer(memory, kind, size // kind.itemsize, begin) for begin, size, kind in places]
        _spread(numbers, flags, num_rows, outs)
    buffers = (memory.slice(begin, size) for begin, size in zip(begins, sizes, strict=False))
    return HeaderColumns(envs, agents, *buffers)


def _spread(numbers: Sequence[Array], flags: Sequence[Array], num_rows: int, outs: Sequence[Array]) -> None:
    """What `spread_headers` does."""
    num_steps, episodes, first_steps, envs, agents = numbers
    episode, step, trajectory, env, agent, offset, group, *bits, valid = outs
    ends = np.cumsum(num_steps)
    episode[:] = np.repeat(episodes, num_steps)
    step[:] = np.repeat(first_steps - (ends - num_steps), num_steps)
    step += np.arange(num_rows)
    trajectory[:] = offset[:-1] = np.repeat(np.arange(len(num_steps), dtype=np.int32), num_steps)
    offset[-1] = len(num_steps)
    env[:] = np.repeat(envs, num_steps)
    agent[:] = np.repeat(agents, num_steps)
    group[:] = 0
    for flag, out in zip(flags, bits, strict=True):
        rows = np.zeros(num_rows, bool)
        rows[ends - 1] = flag
        out[:] = np.packbits(rows, bitorder="little")
    valid[:] = np.packbits(np.ones(num_rows, bool), bitorder="little")


def _numbered(values: Sequence[Hashable]) -> tuple[list[Any], Array]:
    """The distinct values in order of appearance, and which of them each is."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct, np.zeros(len(values), np.int32)
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.fromiter(map(numbers.__getitem__, values), np.int32, len(values))


def count_rows(column: pa.Array) -> list[tuple[UUID, int]]:
    """Every trajectory in a column `trajectory_id`, with its number of rows."""
    indices, ids = names_from_arrow(column, "trajectory_id")
    names: list[str] = ids.to_pylist()
    begins = _run_begins(indices)
    lengths = np.diff(begins, append=len(indices)).tolist()
    return [(_uuid(names[i]), length) for i, length in zip(indices[begins].tolist(), lengths, strict=True)]


def from_batch(batch: pa.RecordBatch, layout: Layout) -> TrajectoryBlock:
    """The trajectories of a batch that has rows and has passed Arrow's own `validate()`, in order."""
    if not batch.schema.equals(layout.schema):
        raise DecodeError("the columns of a batch are not those of its layout")
    return _Split(batch, layout).block()


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
        self._check_rows(episode, step)
        headers = TrajectoryHeaders(
            [_uuid(self._ids[which]).bytes for which in self._which.tolist()],
            [_uuid(env).bytes for env in envs],
            agents,
            episode[self._begins],
            step[self._begins],
            self._ends - self._begins,
            *self._flags(),
        )
        return TrajectoryBlock(layout, headers, arrays, tuple(self._finals()))

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

    def _check_rows(self, episode: Array, step: Array) -> None:
        if min(episode[self._begins].min(), step[self._begins].min()) < 0:
            raise DecodeError("columns 'episode' and 'step' count from 0 on")
        self._require_constant(episode, "episode")
        self._require_constant(step - np.arange(len(step)), "step")
        indices, names = names_from_arrow(self._batch.column("group"), "group")
        if any(names[i].as_py() != self._layout.group for i in np.flatnonzero(np.bincount(indices)).tolist()):
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
