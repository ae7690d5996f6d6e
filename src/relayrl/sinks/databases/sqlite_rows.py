"""How trajectories and their steps are put into SQLite's tables.

SQLite has neither arrays nor NaN. An action of one element is that number; any other is a JSON array, so that
`json_extract(action, '$[1]')` gives its second element. NaN, and an infinite element of an array, are NULL.

A row of `trajectories` has a checksum over what sources read of it; `steps`, which they do not read, has none.

Steps go through an image in memory (`sqlite_image`, ADR 0005), which is loaded before the transaction begins.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from relayrl.data.arrow.schema import LOGP, POLICY_VERSION, REWARD, VALUE
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.data.trees import Array
from relayrl.sinks.databases.database_rows import DATA, HEADER, Bytes, action_elements, data_of, headers, row_numbers
from relayrl.sinks.databases.sqlite_image import MAX_TEXT_BYTES, image_of, table_capacity

IMAGE = "relayrl_image"
STEP_COLUMNS = ('"row"', "trajectory", "step", "policy_version", "reward", "logp", "value", "action")
_COLUMNS = (*HEADER, *DATA, "crc32")
_INSERT_TRAJECTORY = f"INSERT INTO trajectories ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def insert_trajectories(
    connection: sqlite3.Connection, block: TrajectoryBlock, keys: Sequence[int], layout_key: int
) -> None:
    """A row for each."""
    named = (
        (key, uuid_text(trajectory_id), uuid_text(env_id), *rest)
        for key, trajectory_id, env_id, *rest in headers(block, keys, layout_key)
    )
    rows = zip(named, data_of(block), strict=True)
    connection.executemany(_INSERT_TRAJECTORY, ((*header, *data, row_crc32(header, data)) for header, data in rows))


def row_crc32(header: Sequence[Any], data: Sequence[Bytes]) -> int:
    """The checksum of a row's key and of what `trajectory_of` reads; the columns are those of `HEADER` and `DATA`."""
    *plain, terminated, truncated, failed = header[: HEADER.index("failed") + 1]
    group, agent = header[-2:]
    end_step = header[HEADER.index("end_step")]
    crc32 = zlib.crc32(repr((*plain, +terminated, +truncated, +failed, group, agent)).encode())  # SQLite has no bool
    if end_step >= 0:  # older rows were summed without it
        crc32 = zlib.crc32(repr(end_step).encode(), crc32)
    for field in data:
        crc32 = zlib.crc32(field, crc32)
    return crc32


def uuid_text(raw: bytes) -> str:
    """As `str(UUID(bytes=raw))`, in a quarter of the time."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class LoadedSteps:
    """The steps of blocks, in the attached database `IMAGE` until `drop`."""

    def __init__(self, connection: sqlite3.Connection, blocks: Sequence[TrajectoryBlock]) -> None:
        self._connection = connection
        self._wide_actions: list[tuple[int, str]] = []
        tables: list[list[Array]] = []
        self._has_text: list[bool] = []
        first_row = 0
        for block in blocks:
            for columns in self._pieces(block, first_row):
                self._has_text.append(columns[-1].dtype.kind == "S")
                tables.append(columns)
            first_row += block.num_rows
        connection.deserialize(image_of(tables).data, name=IMAGE)

    def insert(self, first_row: int) -> None:
        """All of them, as rows from `first_row` on."""
        for i, has_text in enumerate(self._has_text):
            action = "rtrim(c7)" if has_text else "c7"
            self._connection.execute(
                f"INSERT INTO main.steps ({', '.join(STEP_COLUMNS)}) "
                f"SELECT c0 + ?1, c1 + ?1, c2, c3, c4, c5, c6, {action} FROM {IMAGE}.t{i} ORDER BY rowid",
                (first_row,),
            )
        wide = ((text, row + first_row) for row, text in self._wide_actions)
        self._connection.executemany('UPDATE main.steps SET action = ? WHERE "row" = ?', wide)

    def drop(self) -> None:
        """Give the image's memory back."""
        self._connection.deserialize(image_of([[np.zeros(1, np.int64)]]).data, name=IMAGE)

    def _pieces(self, block: TrajectoryBlock, first_row: int) -> Iterator[list[Array]]:
        """As many rows at a time as a table takes."""
        columns = step_columns(block, first_row)
        action = columns[-1]
        if action.dtype.itemsize > MAX_TEXT_BYTES:
            self._wide_actions += enumerate((text.decode().rstrip() for text in action.tolist()), first_row)
            columns[-1] = np.full(block.num_rows, np.nan)
        size = table_capacity(columns)
        for begin in range(0, block.num_rows, size):
            yield [column[begin : begin + size] for column in columns]


def step_columns(block: TrajectoryBlock, first_row: int) -> list[Array]:
    """The columns `STEP_COLUMNS` of a block whose first step is row `first_row`; texts are padded with spaces."""
    which, steps = row_numbers(block)
    begins, unknown = block.headers.ends - block.headers.num_steps, np.full(block.num_rows, np.nan)
    return [
        np.arange(first_row, first_row + block.num_rows),
        begins[which] + first_row,
        steps,
        block.column(POLICY_VERSION),
        _reals(block.column(REWARD)),
        _reals(block.column(LOGP)) if block.layout.has_logp else unknown,
        _reals(block.column(VALUE)) if block.layout.has_value else unknown,
        _actions(block),
    ]


def _actions(block: TrajectoryBlock) -> Array:
    leaves = [leaf for leaf in action_elements(block) if leaf.shape[1]]
    if sum(leaf.shape[1] for leaf in leaves) == 1:
        single = leaves[0].reshape(-1)
        # An integer of SQLite has 64 bits with a sign.
        is_real = single.dtype.kind == "f" or single.dtype == np.uint64
        return single.astype(np.float64 if is_real else np.int64)
    texts = _arrays_as_text(leaves, block.num_rows)
    width = int(pc.max(pc.binary_length(texts)).as_py())
    return np.frombuffer(pc.utf8_rpad(texts, width).buffers()[2], f"S{width}", block.num_rows)


def _reals(column: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return column.astype(np.float64)


def _arrays_as_text(leaves: list[Array], num_rows: int) -> pa.Array:
    """`[R, …]` as JSON arrays."""
    if not leaves:
        return pa.array(["[]"] * num_rows)
    texts = [_joined(leaf) for leaf in leaves]
    inner = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, ",")
    return pc.binary_join_element_wise("[", inner, "]", "")


def _joined(leaf: Array) -> pa.Array:
    """`[R, A]` as texts of numbers with commas between."""
    flat = leaf.reshape(-1)
    flat = flat.astype(np.float32) if flat.dtype == np.float16 else flat
    elements = pa.array(flat.view(np.uint8) if flat.dtype == bool else flat).cast(pa.string())
    if flat.dtype.kind == "f" and not (is_finite := np.isfinite(flat)).all():
        elements = pc.if_else(pa.array(is_finite), elements, "null")
    offsets = pa.array(np.arange(0, flat.size + 1, leaf.shape[1], dtype=np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, elements), ",")
