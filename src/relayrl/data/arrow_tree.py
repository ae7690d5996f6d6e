"""A record batch from plain memory: every array that it consists of, and where each buffer belongs.

Arrow has a call for each array of a batch, and a batch of trajectories has some forty: columns, elements of lists, names,
successors. With compiled kernels they are handed over in one, through Arrow's C data interface; without them, one by one.

Not its job: what is in the buffers (`arrow_arrays`, and whoever makes batches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from relayrl.compiled.loader import kernels

Buffers: TypeAlias = Sequence[Any]
"""Of an array and of all below it, in preorder: objects with memory, or None for the bits of nulls that are not there."""


class Count(IntEnum):
    """What decides the length of an array."""

    ROWS = 0
    SUCCESSORS = 1
    TRAJECTORY_NAMES = 2
    WORLD_NAMES = 3
    AGENT_NAMES = 4
    GROUP_NAMES = 5


_NAMES = {
    "trajectory_id": Count.TRAJECTORY_NAMES,
    "env_id": Count.WORLD_NAMES,
    "agent_id": Count.AGENT_NAMES,
    "group": Count.GROUP_NAMES,
}


class ArrowTree:
    """The arrays of a batch with a given schema, which is one of `relayrl.data.schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._names = schema, schema.names
        found: list[tuple[int, ...]] = [(Count.ROWS, 1, 1, len(schema), 0)]
        for column in schema:
            found += _arrays(column.type, Count.ROWS, 1, _NAMES.get(column.name))
        table = np.array(found, np.int64)
        self._counts, self._nodes = table[:, 0], table[:, 1:]

    def batch(self, counts: Sequence[int], columns: Mapping[str, Buffers]) -> pa.RecordBatch:
        """A batch that shares the memory of its columns; `counts` are those of `Count`."""
        nodes = self._nodes.copy()
        nodes[:, 0] *= np.take(counts, self._counts)
        buffers = [None, *(buffer for name in self._names for buffer in columns[name])]
        compiled = kernels()
        if compiled is not None:
            return pa.RecordBatch._import_from_c(compiled.arrow_struct(nodes, buffers), self._schema)
        rest = _Rest(iter(nodes.tolist()), iter(buffers))
        rest.take()
        return pa.RecordBatch.from_arrays([rest.array(column.type) for column in self._schema], schema=self._schema)


def _arrays(kind: pa.DataType, count: Count, factor: int, names: Count | None = None) -> list[tuple[int, ...]]:
    """What decides the length, times how many, buffers, children, and whether names follow: of an array and all below it."""
    if pa.types.is_dictionary(kind):
        assert names is not None
        return [(count, factor, 2, 0, 1), (names, 1, 3, 0, 0)]
    if pa.types.is_fixed_size_list(kind):
        return [(count, factor, 1, 1, 0), *_arrays(kind.value_type, count, factor * kind.list_size)]
    if pa.types.is_list(kind):
        return [(count, factor, 2, 1, 0), *_arrays(kind.value_type, Count.SUCCESSORS, 1)]
    if pa.types.is_struct(kind):
        parts = [array for field in kind for array in _arrays(field.type, count, factor)]
        return [(count, factor, 1, kind.num_fields, 0), *parts]
    return [(count, factor, 2, 0, 0)]


class _Rest:
    """What is left of arrays and buffers, taken from the front."""

    def __init__(self, nodes: Iterator[list[int]], buffers: Iterator[Any]) -> None:
        self._nodes, self._buffers = nodes, buffers

    def take(self) -> tuple[int, list[pa.Buffer | None]]:
        """Length and buffers of the next array."""
        length, num_buffers, _, _ = next(self._nodes)
        given = [next(self._buffers) for _ in range(num_buffers)]
        return length, [None if buffer is None else pa.py_buffer(buffer) for buffer in given]

    def array(self, kind: pa.DataType) -> pa.Array:
        """The next array, with all below it."""
        length, buffers = self.take()
        if pa.types.is_dictionary(kind):
            return pa.DictionaryArray.from_buffers(kind, length, buffers, self.array(kind.value_type))
        below = [kind.field(i).type for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, length, buffers, children=[self.array(each) for each in below])
