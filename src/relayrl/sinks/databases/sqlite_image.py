"""Rows as the image of a SQLite database, built in NumPy: no Python object per row.

`sqlite3.Connection.deserialize` opens an image in memory, and `INSERT … SELECT` out of it is several times as fast as binding
numbers one by one. An image is, in the format of https://www.sqlite.org/fileformat2.html:

    page 1 and one root per table   as SQLite made them, empty; a root is then an interior page, or the only leaf
    leaves                          cells from the page's end on, and where each begins from its start on
    cell                            varint payload size · varint row id · payload: varint header size, types, values

All rows of a table have columns of the same width, so that its cells are one structured array. Row ids begin at `FIRST_ROW_ID`,
from where on they take four bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from relayrl.data.trajectory_block import pooled_empty
from relayrl.data.trees import Array

FIRST_ROW_ID = 1 << 21
MAX_TEXT_BYTES = 16_000
"""A cell must fit a page without overflow."""
_PAGE = 1 << 16
_LEAF_HEADER, _INTERIOR_HEADER, _CHILD = 8, 12, 8
_NUM_PAGES_AT = slice(28, 32)


def table_capacity(columns: Sequence[Array]) -> int:
    """Most rows of these columns that one table takes: a root full of leaves."""
    return _rows_per_leaf(_cell_dtype(columns)) * ((_PAGE - _INTERIOR_HEADER) // (_CHILD + 2) + 1)


def image_of(tables: Sequence[Sequence[Array]]) -> Array:
    """A database with tables `t0`, `t1`, …, columns `c0`, `c1`, …; of int64, float64 (NaN reads as NULL) or bytes as text."""
    template, roots = _template(tuple(len(columns) for columns in tables))
    leaves_of = [_num_leaves(columns) for columns in tables]
    num_pages = len(template) + sum(count for count in leaves_of if count > 1)
    pages = pooled_empty((num_pages, _PAGE), np.uint8)  # what lies between cells and pointers is nobody's
    pages[: len(template)] = template
    end = len(template)
    for columns, root, count in zip(tables, roots, leaves_of, strict=True):
        if count == 1:
            _write_leaves(columns, pages[root - 1 : root])
        else:
            pages[root - 1] = _root(count, _rows_per_leaf(_cell_dtype(columns)), end + 1)
            _write_leaves(columns, pages[end : end + count])
            end += count
    pages[0, _NUM_PAGES_AT] = _big_endian(num_pages, ">u4")
    return pages.reshape(-1)


@lru_cache(maxsize=64)
def _template(widths: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
    """The pages of a database with empty tables of so many columns, and the numbers of their roots."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        for i, width in enumerate(widths):
            connection.execute(f"CREATE TABLE t{i} ({', '.join(f'c{k}' for k in range(width))})")
        roots = tuple(root for (root,) in connection.execute("SELECT rootpage FROM sqlite_schema ORDER BY rowid"))
        pages = np.frombuffer(connection.serialize(), np.uint8).reshape(-1, _PAGE)
    finally:
        connection.close()
    return pages, roots


def _num_leaves(columns: Sequence[Array]) -> int:
    return -(-len(columns[0]) // _rows_per_leaf(_cell_dtype(columns)))


def _write_leaves(columns: Sequence[Array], pages: Array) -> None:
    """Fill `pages` [leaves, bytes]; the last page's cells stand at its end, as in the others."""
    num_rows, dtype, num_leaves = len(columns[0]), _cell_dtype(columns), len(pages)
    per_leaf = _rows_per_leaf(dtype)
    whole = (num_leaves - 1) * per_leaf
    on_last = num_rows - whole
    content = _PAGE - per_leaf * dtype.itemsize
    cells = np.ndarray((num_leaves, per_leaf), dtype, pages, content, (_PAGE, dtype.itemsize))
    cells["payload_bytes"] = np.frombuffer(_varint(_payload_bytes(columns)), np.uint8)
    cells["header"] = np.frombuffer(_header(columns), np.uint8)
    row_ids = _varints(np.arange(FIRST_ROW_ID, FIRST_ROW_ID + num_rows, dtype=np.uint32))
    for name, column in (("row_id", row_ids), *((f"c{i}", column) for i, column in enumerate(columns))):
        cells[name][:-1] = column[:whole].reshape(num_leaves - 1, per_leaf)
        cells[name][-1, per_leaf - on_last :] = column[whole:]
    pages[:, :_LEAF_HEADER] = 0
    pages[:, 0] = 13  # a leaf of a table
    begins = (content + np.arange(per_leaf) * dtype.itemsize).astype(">u2")
    for page, count in ((slice(0, -1), per_leaf), (slice(-1, None), on_last)):
        pages[page, 3:5] = _big_endian(count, ">u2")
        pages[page, 5:7] = begins[per_leaf - count : per_leaf - count + 1].view(np.uint8)
        pages[page, _LEAF_HEADER : _LEAF_HEADER + 2 * count] = begins[per_leaf - count :].view(np.uint8)


def _root(num_leaves: int, per_leaf: int, first_leaf: int) -> Array:
    """An interior page: for every leaf but the last its number and last row id, then the last leaf's number."""
    num_cells = num_leaves - 1
    cells = np.zeros(num_cells, np.dtype([("child", ">u4"), ("last_row_id", ">u4")]))
    cells["child"] = first_leaf + np.arange(num_cells)
    cells["last_row_id"] = _varints(FIRST_ROW_ID - 1 + per_leaf * np.arange(1, num_cells + 1, dtype=np.uint32))
    content = _PAGE - cells.nbytes
    page = np.zeros(_PAGE, np.uint8)
    page[0] = 5  # an interior page of a table
    page[3:5] = _big_endian(num_cells, ">u2")
    page[5:7] = _big_endian(content % _PAGE, ">u2")  # 0 stands for 65536
    page[8:12] = _big_endian(first_leaf + num_cells, ">u4")
    begins = (content + _CHILD * np.arange(num_cells)).astype(">u2")
    page[_INTERIOR_HEADER : _INTERIOR_HEADER + 2 * num_cells] = begins.view(np.uint8)
    page[content:] = cells.view(np.uint8)
    return page


def _cell_dtype(columns: Sequence[Array]) -> np.dtype[Any]:
    prefix, header = len(_varint(_payload_bytes(columns))), len(_header(columns))
    fields: list[Any] = [("payload_bytes", "u1", (prefix,)), ("row_id", ">u4"), ("header", "u1", (header,))]
    return np.dtype(fields + [(f"c{i}", column.dtype.newbyteorder(">")) for i, column in enumerate(columns)])


def _rows_per_leaf(cell: np.dtype[Any]) -> int:
    return (_PAGE - _LEAF_HEADER) // (cell.itemsize + 2)


def _payload_bytes(columns: Sequence[Array]) -> int:
    return len(_header(columns)) + sum(column.dtype.itemsize for column in columns)


def _header(columns: Sequence[Array]) -> bytes:
    """Its own size, at most 127, and the columns' types: 6 is int64, 7 float64, 13 + 2n text of n bytes."""
    kinds = (column.dtype for column in columns)
    types = b"".join(_varint(13 + 2 * kind.itemsize if kind.kind == "S" else 6 + (kind.kind == "f")) for kind in kinds)
    return bytes([len(types) + 1]) + types


def _varint(number: int) -> bytes:
    """Seven bits a byte, the highest first; all but the last have their high bit set."""
    found = [number & 0x7F]
    while number := number >> 7:
        found.append(number & 0x7F | 0x80)
    return bytes(reversed(found))


def _varints(numbers: Array) -> Array:
    """[N] the four bytes of varints of uint32 numbers from 2**21 to 2**28 - 1, the highest first."""
    found = numbers & 0x7F | 0x80808000
    for shift in (1, 2, 3):
        found |= (numbers & (0x7F << 7 * shift)) << shift
    return np.asarray(found)


def _big_endian(number: int, kind: str) -> Array:
    return np.array([number], kind).view(np.uint8)
