"""PostgreSQL's binary COPY stream, built from columns: no Python object per step, no text.

    stream   "PGCOPY\\n\\xff\\r\\n\\0", int32 flags, int32 extension length; rows; int16 -1
    row      int16 number of fields; for each int32 length (-1: NULL) and its bytes, numbers big-endian
    array    int32 number of axes, int32 has nulls, int32 element type; int32 length, int32 first index; elements as fields

See https://www.postgresql.org/docs/current/sql-copy.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from relayrl.compiled.loader import row_kernels
from relayrl.data.arrow.schema import LOGP, POLICY_VERSION, REWARD, VALUE
from relayrl.data.trajectory_block import TrajectoryBlock, pooled_empty
from relayrl.data.trees import Array
from relayrl.sinks.databases.database_rows import (
    DATA,
    HEADER,
    Bytes,
    action_elements,
    data_columns,
    data_of,
    plain_columns,
    row_numbers,
)

BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"
COPY_TRAJECTORIES = f"COPY trajectories ({', '.join((*HEADER, *DATA))}) FROM STDIN (FORMAT binary)"
COPY_STEPS = "COPY steps (trajectory, step, policy_version, reward, logp, value, action) FROM STDIN (FORMAT binary)"
_FLOAT8_TYPE = 701
_PIECE_BYTES, _PIECE_ROWS = 1 << 18, 1 << 12
"""The server works on a piece while the next one is made."""
_LENGTH = struct.Struct(">i")
_FIXED = ("q", "16s", "16s", "q", "q", "q", "q", "?", "?", "?", "q", "q", "d", "q", "q")
"""The header's fields of fixed size."""
_NUMPY_KINDS = {"q": ">i8", "16s": "V16", "?": "?", "d": ">f8"}


def trajectory_rows(block: TrajectoryBlock, keys: Sequence[int], layout_key: int) -> Iterator[Bytes]:
    """The rows of a block for `COPY_TRAJECTORIES`, in pieces of many; a piece is good until the next one is asked for."""
    *plain, groups, agents = plain_columns(block, keys, layout_key)
    fixed = _fixed_fields(plain)
    texts = tuple([name.encode() for name in names] for names in (groups, agents))
    compiled = row_kernels()
    if compiled is None:
        yield from _joined_rows(fixed, texts, block)
        return
    columns, finals = data_columns(block)
    num_steps, data = np.ascontiguousarray(block.headers.num_steps), tuple(map(tuple, columns))
    per_step, per_row = (sum(size for part in parts for _, size in part) for parts in (columns, [finals]))
    sizes = fixed.itemsize + 4 * (len(texts) + len(DATA)) + per_row + per_step * num_steps
    sizes += np.array([sum(map(len, each)) for each in zip(*texts, strict=True)], np.int64)
    ends = _piece_ends(sizes)
    memory = pooled_empty((max(int(sizes[a:b].sum()) for a, b in pairwise([0, *ends])),), np.uint8)
    first_step = 0
    for begin, end in pairwise([0, *ends]):
        piece = memory[: int(sizes[begin:end].sum())]
        compiled.copy_records(
            fixed[begin:end], texts, data, tuple(finals), num_steps[begin:end], begin, first_step, piece
        )
        first_step += int(num_steps[begin:end].sum())
        yield piece.data


def _piece_ends(sizes: Array) -> list[int]:
    """Behind which records pieces end: each has `_PIECE_BYTES` or more, but the last."""
    ends, num_bytes = [], 0
    for i, size in enumerate(sizes.tolist(), 1):
        num_bytes += size
        if num_bytes >= _PIECE_BYTES or i == len(sizes):
            ends.append(i)
            num_bytes = 0
    return ends


def _fixed_fields(columns: Sequence[Sequence[Any]]) -> Array:
    """Field count, then the header's fields of fixed size, each behind its length."""
    fields: list[Any] = [("fields", ">i2")]
    for i, kind in enumerate(_FIXED):
        fields += [(f"length_{i}", ">i4"), (f"field_{i}", _NUMPY_KINDS[kind])]
    rows = np.zeros(len(columns[0]), np.dtype(fields))
    rows["fields"] = len(HEADER) + len(DATA)
    for i, (kind, column) in enumerate(zip(_FIXED, columns, strict=True)):
        rows[f"length_{i}"] = rows.dtype[f"field_{i}"].itemsize
        rows[f"field_{i}"] = np.frombuffer(b"".join(column), "V16") if kind == "16s" else np.array(column)
    return rows


def _joined_rows(fixed: Array, texts: tuple[list[bytes], ...], block: TrajectoryBlock) -> Iterator[bytes]:
    """What `copy_records` does, in pieces."""
    pieces: list[Any] = []
    num_bytes = 0
    for i, (names, arrays) in enumerate(zip(zip(*texts, strict=True), data_of(block), strict=True)):
        pieces.append(fixed[i].tobytes())
        for data in (*names, *arrays):
            pieces += (_LENGTH.pack(len(data)), data)
            num_bytes += len(data)
        if num_bytes >= _PIECE_BYTES:
            yield b"".join(pieces)
            pieces, num_bytes = [], 0
    yield b"".join(pieces)


def step_rows(block: TrajectoryBlock, keys: Sequence[int]) -> Iterator[memoryview]:
    """The rows of a block for `COPY_STEPS`, in pieces of many."""
    layout = block.layout
    leaves = action_elements(block)
    num_elements = sum(leaf.shape[1] for leaf in leaves)
    which, steps = row_numbers(block)
    columns = {"trajectory": np.array(keys, np.int64)[which], "step": steps}
    columns |= {leaf.name: block.column(leaf) for leaf in (POLICY_VERSION, REWARD)}
    columns |= {leaf.name: block.column(leaf) for leaf in (LOGP, VALUE) if getattr(layout, f"has_{leaf.name}")}
    rows = _blank_rows(min(_PIECE_ROWS, block.num_rows), layout.has_logp, layout.has_value, num_elements)
    for begin in range(0, block.num_rows, _PIECE_ROWS):
        piece = slice(begin, begin + _PIECE_ROWS)
        filled = rows[: min(_PIECE_ROWS, block.num_rows - begin)]
        for name, column in columns.items():
            filled[name] = column[piece]
        if num_elements:
            _fill_actions(filled["elements"]["number"], [leaf[piece] for leaf in leaves])
        yield filled.view(np.uint8).data


def _blank_rows(num_rows: int, has_logp: bool, has_value: bool, num_elements: int) -> Array:
    """Rows with everything but their numbers."""
    rows = np.zeros(num_rows, _row_dtype(has_logp, has_value, num_elements))
    rows["fields"] = 7
    for name in ("trajectory", "step", "policy_version", "reward", "logp", "value"):
        rows[f"{name}_length"] = rows.dtype[name].itemsize if name in (rows.dtype.names or ()) else -1
    rows["element_type"] = _FLOAT8_TYPE
    rows["action_length"] = 12  # an array without axes
    if num_elements:
        rows["action_length"] = 20 + 12 * num_elements
        rows["num_axes"] = rows["first_index"] = 1
        rows["num_elements"] = num_elements
        rows["elements"]["length"] = 8
    return rows


def _row_dtype(has_logp: bool, has_value: bool, num_elements: int) -> np.dtype[Any]:
    fields: list[Any] = [("fields", ">i2")]
    kinds = {"trajectory": ">i8", "step": ">i8", "policy_version": ">i8", "reward": ">f4"}
    kinds |= {name: ">f4" if present else "" for name, present in (("logp", has_logp), ("value", has_value))}
    for name, kind in kinds.items():
        fields.append((f"{name}_length", ">i4"))
        if kind:
            fields.append((name, kind))
    fields += [("action_length", ">i4"), ("num_axes", ">i4"), ("has_nulls", ">i4"), ("element_type", ">i4")]
    if num_elements:
        element = np.dtype([("length", ">i4"), ("number", ">f8")])
        fields += [("num_elements", ">i4"), ("first_index", ">i4"), ("elements", element, (num_elements,))]
    return np.dtype(fields)


def _fill_actions(numbers: Array, leaves: list[Array]) -> None:
    begin = 0
    with np.errstate(all="ignore"):
        for leaf in leaves:
            numbers[:, begin : begin + leaf.shape[1]] = leaf
            begin += leaf.shape[1]
