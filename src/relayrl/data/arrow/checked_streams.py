"""Streams of trajectories that are checked as they came, without being decoded: what a server stores as the bytes it received.

    plans = StreamPlans()
    plans.add(block)                      # a block that was decoded and checked: from now on its layout is known
    stream = plans.check(frame)           # None: decode it, which says what is wrong, if anything is
    stream.body                           # its dictionaries and its batch, to be appended to a file with the same schema

A plan is what the kernel `check_stream` needs to know of a layout: the schema's bytes, a stream's metadata with the places of
all numbers in it, and dtype, width and choices of every column. Metadata must be what this program's Arrow writes, byte for
byte, numbers aside; messages of other Arrow programs are decoded. So are compressed ones, layouts with action masks or half
floats, and everything where the kernels are missing.

Not its job: what is wrong with a message (`codec`), or storing it (`sinks`).
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from relayrl.compiled.loader import row_kernels
from relayrl.data.arrow.codec import DEFAULT_MAX_BYTES, encode_block
from relayrl.data.arrow.ipc_limits import number_places
from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.arrow.schema import FAILED, TERMINATED, TRUNCATED, Layout, Leaf, row_width_bytes
from relayrl.data.choices import value_bounds
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, space_leaves

_Plan: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
_MAX_PLANS = 32
_MAX_SCHEMA_BYTES = 1 << 16
_END_BYTES = 8
"""Of Arrow's mark at the end of a stream."""

# As `stream_check.c` numbers them.
_ROLES = (
    "",
    "episode",
    "step",
    "policy_version",
    "terminated",
    "truncated",
    "failed",
    "valid",
    "first_step",
    "end_step",
)
_FLOATS = {"float32": 1, "float64": 2}
_BITS = 3
_INTEGERS = {"int8": 4, "int16": 5, "int32": 6, "int64": 7, "uint8": 8, "uint16": 9, "uint32": 10}
_UNCHECKED = 0


@dataclass(slots=True, eq=False)
class CheckedStream:
    """The bytes of one block, of which everything is known to be right. Nobody changes it: it is not frozen because that
    takes 1 µs of each message."""

    data: memoryview
    layout: Layout
    trajectory_ids: list[bytes]
    """16 bytes each."""
    num_rows: int
    newest_version: int
    """Of the policies that acted."""
    _env_ids: bytes
    _agent_ids: list[str]
    _begins: bytes
    """int32: the first row of every trajectory, and the number of rows."""
    _places: bytes
    """int64: where the values of every column of `layout.leaves` begin, then those of `layout.successor`."""

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    @property
    def body(self) -> memoryview:
        """What comes between the schema, which is `layout.fingerprint`, and the end of the stream."""
        return self.data[len(self.layout.fingerprint) : -_END_BYTES]

    def block(self) -> TrajectoryBlock:
        """The trajectories; arrays are read-only views of `data`, but for booleans. Nothing is checked again."""
        layout, begins = self.layout, np.frombuffer(self._begins, np.int32)
        memory = _aligned(self.data)
        values = _Values(memory, np.frombuffer(self._places, np.int64).tolist())
        columns = {leaf.name: values.next(leaf, self.num_rows) for leaf in layout.leaves}
        finals = [values.next(leaf, len(self)) for leaf in layout.successor]
        firsts, lasts, steps = begins[:-1], begins[1:] - 1, columns["step"]
        first_step, end_step = (finals.pop(-2), finals.pop()) if layout.knows_steps else (steps[firsts], None)
        num_steps = (lasts - firsts + 1).astype(np.int64)
        # Steps increase, so that the last one of a trajectory says whether they count on from its first.
        counts_on = bool((steps[lasts] - first_step == num_steps - 1).all())
        headers = TrajectoryHeaders(
            self.trajectory_ids,
            [self._env_ids[i : i + 16] for i in range(0, len(self._env_ids), 16)],
            self._agent_ids,
            columns["episode"][firsts],
            first_step,
            num_steps,
            *(columns[leaf.name][lasts] for leaf in (TERMINATED, TRUNCATED, FAILED)),
            end_step=end_step,
        )
        arrays = tuple(columns[leaf.name] for leaf in layout.stored)
        return TrajectoryBlock(layout, headers, arrays, tuple(finals), None if counts_on else steps)


class _Values:
    """Columns of a stream one after the other, by the places that the kernel found."""

    def __init__(self, memory: memoryview, places: list[int]) -> None:
        self._memory, self._places = memory, iter(places)

    def next(self, leaf: Leaf, num_rows: int) -> Array:
        place, count = next(self._places), num_rows * leaf.width
        if leaf.dtype.kind == "b":
            bits = np.frombuffer(self._memory, np.uint8, -(-count // 8), place)
            array = np.unpackbits(bits, count=count, bitorder="little").view(bool)
        else:
            array = np.frombuffer(self._memory, leaf.dtype, count, place)
        array = array.reshape(num_rows, *leaf.shape) if leaf.shape else array
        array.flags.writeable = False
        return array


def _aligned(data: memoryview) -> memoryview:
    """The same bytes, where numbers lie as NumPy likes them: a part of a larger message may lie anywhere."""
    return data if np.frombuffer(data, np.int64, 1).flags.aligned else memoryview(bytes(data))


class _Known(NamedTuple):
    """A layout that was added."""

    layout: Layout
    row_bytes: int
    plan: _Plan | None


class StreamPlans:
    """Plans of the layouts that were seen lately, by the bytes of their schema. Any thread may check; one adds."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """A stream may not be longer than `max_bytes` when it is decoded."""
        self._max_bytes = max_bytes
        self._plans: OrderedDict[bytes, _Known] = OrderedDict()
        self._latest: _Known | None = None
        """Of the stream before: most often of the next one too, which the kernel compares without making a key of it."""

    def add(self, block: TrajectoryBlock) -> None:
        """Know the layout of a block that passed every check."""
        schema = block.layout.fingerprint
        if schema not in self._plans:
            row_bytes = row_width_bytes(block.layout.schema)
            self._plans[schema] = _Known(layout_book().known(block.layout), row_bytes, _plan(block))
            if len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)

    def check(self, data: memoryview | bytes | bytearray) -> CheckedStream | None:
        """The stream in `data`, if it is surely one of a known layout."""
        compiled = row_kernels()
        if compiled is None or len(data) < 8:
            return None
        known = self._latest
        found = None if known is None or known.plan is None else compiled.check_stream(data, known.plan)
        if found is None:
            other = self._known(data)
            if other is None or other is known or other.plan is None:
                return None
            known = self._latest = other
            found = compiled.check_stream(data, other.plan)
        if known is None or found is None:
            return None
        ids, num_rows, newest_version, envs, agents, begins, places = found
        num_bytes = len(data)
        if num_bytes > self._max_bytes or num_rows * known.row_bytes > self._max_bytes:
            return None
        each = [ids] if len(ids) == 16 else [ids[i : i + 16] for i in range(0, len(ids), 16)]
        return CheckedStream(
            memoryview(data), known.layout, each, num_rows, newest_version, envs, agents, begins, places
        )

    def _known(self, data: memoryview | bytes | bytearray) -> _Known | None:
        """What is known of the layout that `data` begins with."""
        (num_schema_bytes,) = struct.unpack_from("<i", data, 4)
        if not 0 < num_schema_bytes <= _MAX_SCHEMA_BYTES:
            return None
        return self._plans.get(bytes(data[: 8 + num_schema_bytes]))


def _plan(block: TrajectoryBlock) -> _Plan | None:
    """What the kernel needs to know of a block's layout; None where it cannot check it."""
    layout = block.layout
    observed, acted = (_bounds(space) for space in (layout.observation_space, layout.action_space))
    names = [leaf.name for leaf in (*layout.observation, *layout.action)]
    own: dict[str, Any] = dict(zip(names, (*observed, *acted), strict=True))
    columns = [_column(leaf, own.get(leaf.name, ())) for leaf in layout.leaves]
    finals = [_column(leaf, own.get(leaf.name, ())) for leaf in layout.successor]
    if sys.byteorder != "little" or layout.mask_width is not None or None in columns or None in finals:
        return None
    sample = memoryview(encode_block(block)).cast("B")
    heads, template, mask = [], bytearray(), bytearray()
    for place in number_places(sample):
        numbers = (place.length, place.body_length, place.nodes, place.buffers)
        heads.append((len(template), place.num_bytes, *numbers))
        free = bytearray(b"\xff" * place.num_bytes)
        lengths = (8, 8, 16 * place.num_nodes, 16 * place.num_buffers)
        for begin, length in zip(numbers, lengths, strict=True):
            free[begin : begin + length] = bytes(length)
        template += sample[place.begin : place.begin + place.num_bytes]
        mask += free
    group = layout.group.encode()
    return layout.fingerprint, bytes(template), bytes(mask), group, _table(heads), _table(columns), _table(finals)


def _bounds(space: Any) -> list[Any]:
    """Of every leaf: the least and greatest choice, or nothing; None where elements have choices of their own."""
    found: list[Any] = []
    for _, leaf in space_leaves(space):
        bounds = value_bounds(leaf)
        if bounds is None:
            found.append(())
            continue
        low, high = (np.unique(bound) for bound in bounds)
        is_one = len(low) == len(high) == 1 and -(2**63) <= low[0] <= high[0] < 2**63
        found.append((int(low[0]), int(high[0])) if is_one else None)
    return found


def _column(leaf: Leaf, bounds: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Role, kind, bytes, width, least and greatest value of a column; None where the kernel cannot check it."""
    role = _ROLES.index(leaf.name) if leaf.name in _ROLES else 0
    width = leaf.width if leaf.shape else 0
    kind = _kind(leaf.dtype.name, has_bounds=bool(bounds))
    if bounds is None or kind is None or (leaf.shape and not width):
        return None
    return (role, kind, leaf.dtype.itemsize, width, *(bounds or (0, 0)))


def _kind(dtype: str, *, has_bounds: bool) -> int | None:
    if dtype == "bool" or dtype in _FLOATS:
        return _BITS if dtype == "bool" else _FLOATS[dtype]
    if dtype == "float16" or (has_bounds and dtype not in _INTEGERS):
        return None
    return _INTEGERS[dtype] if has_bounds else _UNCHECKED


def _table(rows: list[Any]) -> bytes:
    return np.array(rows, np.int64).tobytes()
