"""A block of trajectories as one Arrow record batch, and single columns as Arrow's: what sinks write and `codec` encodes.

A batch has the columns of `relayrl.data.arrow.schema` with the rows of whole trajectories one after the other, and the
dictionary of `trajectory_id` has an entry for each. Writing a trajectory at a time would cost a message and a dictionary for
each.

Memory is shared wherever NumPy and Arrow lay it out alike: everything but booleans, which are bits in Arrow and bytes in NumPy.
What only headers say (who, which episode and step, how it ended) gets a value for every row, in one piece of memory from
Arrow's pool; flags are bits there.

Not its job: which columns there are (`schema`), or reading them (`arrow_reading`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from relayrl.compiled.loader import row_kernels
from relayrl.data.arrow.schema import (
    END_STEP,
    EPISODE,
    FAILED,
    FIRST_STEP,
    GROUP,
    ID,
    STEP,
    TERMINATED,
    TRUNCATED,
    VALID,
    Layout,
    Leaf,
)
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders, by_layout, joined_blocks
from relayrl.data.trees import Array
from relayrl.errors import ConfigError

_KINDS = tuple(map(np.dtype, (np.int64, np.int64, *[np.int32] * 4, np.int8, *[np.uint8] * 4)))


def to_batches(blocks: Sequence[TrajectoryBlock], max_rows: int) -> Iterator[tuple[Layout, pa.RecordBatch]]:
    """Batches of at most `max_rows` rows, or of one longer trajectory; in order within each layout."""
    for group in by_layout(blocks):
        some: list[TrajectoryBlock] = []
        for piece in (piece for block in group for piece in pieces(block, max_rows)):
            if some and sum(each.num_rows for each in some) + piece.num_rows > max_rows:
                yield piece.layout, to_batch(joined_blocks(some))
                some = []
            some.append(piece)
        yield group[0].layout, to_batch(joined_blocks(some))


def pieces(block: TrajectoryBlock, max_rows: int) -> Iterator[TrajectoryBlock]:
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
    if block.steps is not None:
        columns[STEP.name] = to_arrow(STEP, block.steps, (num_rows,))
    for name, kind, numbers, texts in (
        ("trajectory_id", ID, given.trajectory, _uuid_texts(headers.trajectory_ids)),
        ("env_id", ID, given.env, _uuid_texts(given.envs)),
        ("agent_id", ID, given.agent, pa.array(given.agents, pa.string())),
        ("group", GROUP, given.group, pa.array([layout.group], pa.string())),
    ):
        columns[name] = pa.DictionaryArray.from_buffers(kind, num_rows, [None, numbers], texts)
    finals = list(zip(layout.followed, block.finals, strict=True))
    if layout.knows_steps and headers.end_step is not None:
        finals += [(FIRST_STEP, headers.first_step), (END_STEP, headers.end_step)]
    records = [to_arrow(leaf, final, (len(block),)) for leaf, final in finals]
    kind = layout.schema.field("successor").type
    followed = pa.Array.from_buffers(kind.value_type, len(block), [None], children=records)
    columns["successor"] = pa.Array.from_buffers(kind, num_rows, [None, given.offset], children=[followed])
    return pa.RecordBatch.from_arrays([columns[name] for name in layout.schema.names], schema=layout.schema)


def to_arrow(leaf: Leaf, array: Any, leading: tuple[int, ...]) -> pa.Array:
    """A NumPy array `[*leading, *leaf.shape]` as a column with one row per leading element."""
    buffer, num_rows = pa.py_buffer(_laid_out(leaf, array, leading)), prod(leading)
    kind = leaf.arrow_type
    if not leaf.shape:
        return pa.Array.from_buffers(kind, num_rows, [None, buffer])
    values = pa.Array.from_buffers(kind.value_type, num_rows * leaf.width, [None, buffer])
    return pa.Array.from_buffers(kind, num_rows, [None], children=[values])


def _laid_out(leaf: Leaf, array: Any, leading: tuple[int, ...]) -> Array:
    """The elements of `[*leading, *leaf.shape]` as Arrow lays them out."""
    if not isinstance(array, np.ndarray | np.generic):
        raise ConfigError(
            f"column {leaf.name!r} is a {type(array).__name__}; copy it to a NumPy array on the host first"
        )
    shape = (*leading, *leaf.shape)
    if array.dtype != leaf.dtype or array.shape != shape:
        raise ConfigError(
            f"column {leaf.name!r} is {array.dtype} {list(array.shape)}, expected {leaf.dtype} {list(shape)}"
        )
    flat: Array = np.asarray(array)
    if not (flat.ndim and flat.flags.c_contiguous):
        flat = np.ascontiguousarray(flat)
    return np.packbits(flat, bitorder="little") if leaf.dtype.kind == "b" else flat


def _uuid_texts(ids: list[bytes]) -> pa.Array:
    """The text of each UUID."""
    texts, compiled = np.full((len(ids), 36), ord("-"), np.uint8), row_kernels()
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
    memory, compiled = pa.allocate_buffer(begins[-1]), row_kernels()
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


def names_to_arrow(kind: pa.DataType, indices: Array, names: Sequence[str]) -> pa.Array:
    """Row `i` is `names[indices[i]]`, dictionary-encoded; `indices` have the dtype of `kind`."""
    dictionary = pa.array(names, type=pa.string())
    return pa.DictionaryArray.from_buffers(kind, len(indices), [None, pa.py_buffer(indices)], dictionary)


def successors_to_arrow(kind: pa.DataType, rows: Array, num_rows: int, records: Sequence[pa.Array]) -> pa.Array:
    """A list column with one record on each of `rows` (ascending) and none elsewhere."""
    lengths = np.diff(rows, prepend=-1, append=num_rows)
    offsets = np.repeat(np.arange(len(rows) + 1, dtype=np.int32), lengths)
    struct = pa.Array.from_buffers(kind.value_type, len(rows), [None], children=list(records))
    return pa.Array.from_buffers(kind, num_rows, [None, pa.py_buffer(offsets)], children=[struct])
