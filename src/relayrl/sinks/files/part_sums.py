"""Checksums of part files, in a file beside each part: `part-….sums`.

    .arrows 81920 grid:9f3c01aa flushed 5d20b1c7

A line is the suffix of the file, where a piece of it ends, the piece's checksum, `flushed` or `closed`, and the CRC-32 of the
line itself. A piece is what one flush wrote; the next one begins where it ends. A line is written after the fsync of its piece
and is itself fsynced when the part is closed: recording costs no second fsync per flush. So after kill -9 every flush is
covered. After loss of power the last lines may be missing: what they would cover is still read, and counted as unchecked.

`grid:` stands before a `GridSum`, which takes a fifth of the time of a CRC-32. A checksum without a name is a CRC-32 of the
whole piece, as files from before `grid:` have.

A piece that differs from its checksum is a `DecodeError`, as is a closed part that has lost its end. A part without this file
was recorded by an older RelayRL and is unchecked. Not its job: torn ends (`arrow_files`, `csv_files`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from relayrl.errors import DecodeError

_SUFFIX = ".sums"
_FLUSHED, _CLOSED = "flushed", "closed"
_GRID = "grid:"
_ROW_WORDS = 512
_ROW_BYTES = 8 * _ROW_WORDS


class GridSum:
    """A checksum of bytes that come in pieces of any length.

    They are 64-bit little-endian words, filled up with zeros, in rows of 512. The checksum is the CRC-32 of the sums of all
    rows, in order, and then of all columns, modulo 2**64. Any change within 4096 consecutive bytes changes the sum of a column;
    changes further apart go unnoticed only where they cancel out in rows and columns alike, which takes four words or more.
    """

    def __init__(self) -> None:
        self._columns = np.zeros(_ROW_WORDS, "<u8")
        self._rows_crc32 = 0
        self._rest = b""  # of a row that is not full yet

    def add(self, data: memoryview) -> None:
        """More bytes."""
        if self._rest:
            missing = _ROW_BYTES - len(self._rest)
            self._rest, data = self._rest + data[:missing], data[missing:]
            if len(self._rest) < _ROW_BYTES:
                return
            self._add_rows(self._rest)
        end = len(data) // _ROW_BYTES * _ROW_BYTES
        self._add_rows(data[:end])
        self._rest = bytes(data[end:])

    def take(self) -> int:
        """The checksum of all bytes since the last call."""
        if self._rest:
            self._add_rows(self._rest.ljust(_ROW_BYTES, b"\0"))
        crc32 = zlib.crc32(self._columns.data, self._rows_crc32)
        self._columns[:], self._rows_crc32, self._rest = 0, 0, b""
        return crc32

    def _add_rows(self, data: bytes | memoryview) -> None:
        words = np.frombuffer(data, "<u8").reshape(-1, _ROW_WORDS)
        self._columns += np.add.reduce(words, 0)
        self._rows_crc32 = zlib.crc32(np.add.reduce(words, 1).astype("<u8", copy=False).data, self._rows_crc32)


class SummedFile:
    """A new file of a part, whose checksums are written beside `part`. Arrow may write through it (`pa.PythonFile`)."""

    def __init__(self, path: Path, part: Path) -> None:
        self._name = part.suffix
        self._sum = GridSum()
        self._num_bytes = self._num_summed = 0
        self._file = path.open("xb", buffering=0)
        try:
            self._sums = part.with_suffix(_SUFFIX).open("ab", buffering=0)
        except OSError:
            self._file.close()
            raise

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes | memoryview | pa.Buffer) -> int:
        """All of it."""
        rest = memoryview(data).cast("B")
        self._sum.add(rest)
        self._num_bytes += len(rest)
        while len(rest):
            rest = rest[self._file.write(rest) :]
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing is buffered here."""

    def tell(self) -> int:
        return self._num_bytes

    def sync(self) -> None:
        """Return when what was written is durable, and has its checksum."""
        os.fsync(self._file.fileno())
        if self._num_bytes > self._num_summed:
            self._add_line(_FLUSHED)

    def close(self) -> None:
        """No more is to come, durably; a second call does nothing."""
        if not self.closed:
            os.fsync(self._file.fileno())
            self._add_line(_CLOSED)
            os.fsync(self._sums.fileno())
            self.abandon()

    def abandon(self) -> None:
        """Let go of both files as they are."""
        self._file.close()
        self._sums.close()

    def _add_line(self, state: str) -> None:
        self._sums.write(_line(f"{self._name} {self._num_bytes} {_GRID}{self._sum.take():08x} {state}"))
        self._num_summed = self._num_bytes


def _line(text: str) -> bytes:
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class _Piece(NamedTuple):
    name: str
    end: int
    checksum: str
    is_last: bool

    def is_of(self, data: memoryview) -> bool:
        """Whether the piece has these bytes."""
        if not self.checksum.startswith(_GRID):
            return f"{zlib.crc32(data):08x}" == self.checksum
        found = GridSum()
        found.add(data)
        return f"{_GRID}{found.take():08x}" == self.checksum


def check_sums(path: Path, *, first_piece_only: bool = False) -> int:
    """How many bytes of a file are what was written; 0 if it has no checksums, `DecodeError` if some differ."""
    pieces = [piece for piece in _pieces(path.with_suffix(_SUFFIX)) if piece.name == path.suffix]
    num_bytes = path.stat().st_size
    if pieces and pieces[-1].is_last and pieces[-1].end != num_bytes:
        raise DecodeError(f"{path} is damaged: it was closed with {pieces[-1].end} bytes and has {num_bytes}")
    # What an unclosed part has lost of its end is torn, whatever its checksums say.
    whole = [piece for piece in pieces if piece.end <= num_bytes]
    if not whole or num_bytes == 0:
        return 0
    with pa.memory_map(str(path)) as file:
        data, begin = memoryview(file.read_buffer()), 0
    for piece in whole[:1] if first_piece_only else whole:
        if not piece.is_of(data[begin : piece.end]):
            raise DecodeError(f"{path} is damaged: bytes {begin} to {piece.end} differ from their checksum")
        begin = piece.end
    return begin


def _pieces(path: Path) -> Iterator[_Piece]:
    """The lines of a file of checksums; one that its writer did not finish is left out."""
    try:
        data = path.read_bytes().rstrip(b"\0")  # which some file systems leave after a loss of power
    except FileNotFoundError:
        return
    *lines, _ = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        text, _, _ = line.decode(errors="replace").rpartition(" ")
        if _line(text) != line + b"\n":
            raise DecodeError(f"{path} is damaged in line {number}")
        name, end, checksum, state = text.split(" ")
        yield _Piece(name, int(end), checksum, state == _CLOSED)
