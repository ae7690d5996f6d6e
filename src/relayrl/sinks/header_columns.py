"""What the headers of trajectories say, with a value for every row: the columns that no array of a trajectory holds.

All stand in one piece of memory from Arrow's pool; flags are bits, as Arrow has them. With compiled kernels one pass over the
headers fills everything, without them NumPy does, column by column.

Not its job: the arrays of a trajectory, or Arrow's arrays (`row_batches`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from relayrl.compiled.loader import kernels
from relayrl.data.trajectory_block import TrajectoryHeaders
from relayrl.data.trees import Array

_KINDS = tuple(map(np.dtype, (np.int64, np.int64, *[np.int32] * 4, np.int8, *[np.uint8] * 4)))


@dataclass(frozen=True, slots=True, eq=False)
class HeaderColumns:
    """`R` rows of `K` trajectories, as Arrow's buffers. Names are numbers: of the trajectory, of `worlds` and of `agents`."""

    worlds: list[bytes]
    agents: list[str]
    episode: pa.Buffer  # [R] int64
    step: pa.Buffer  # [R] int64
    trajectory: pa.Buffer  # [R] int32
    world: pa.Buffer  # [R] int32
    agent: pa.Buffer  # [R] int32
    offset: pa.Buffer  # [R + 1] int32, how many trajectories have ended before each row
    group: pa.Buffer  # [R] int8, always 0: there is one
    terminated: pa.Buffer  # [R] bits, as the next two: set on the last row where the trajectory ended so
    truncated: pa.Buffer
    failed: pa.Buffer
    valid: pa.Buffer  # [R] bits, all set


def header_columns(headers: TrajectoryHeaders, num_rows: int) -> HeaderColumns:
    """The columns of trajectories whose lengths add up to `num_rows`."""
    (worlds, world), (agents, agent) = _numbered(headers.env_ids), _numbered(headers.agent_ids)
    numbers = (headers.num_steps, headers.episode, headers.first_step, world, agent)
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
    return HeaderColumns(worlds, agents, *buffers)


def _spread(numbers: Sequence[Array], flags: Sequence[Array], num_rows: int, outs: Sequence[Array]) -> None:
    """What `spread_headers` does."""
    num_steps, episodes, first_steps, worlds, agents = numbers
    episode, step, trajectory, world, agent, offset, group, *bits, valid = outs
    ends = np.cumsum(num_steps)
    episode[:] = np.repeat(episodes, num_steps)
    step[:] = np.repeat(first_steps - (ends - num_steps), num_steps)
    step += np.arange(num_rows)
    trajectory[:] = offset[:-1] = np.repeat(np.arange(len(num_steps), dtype=np.int32), num_steps)
    offset[-1] = len(num_steps)
    world[:] = np.repeat(worlds, num_steps)
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
