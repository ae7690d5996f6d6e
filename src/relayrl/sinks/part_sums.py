"""Checksums of part files, in a file beside each part: `part-….sums`.

    .arrows 81920 9f3c01aa flushed 5d20b1c7

A line is the suffix of the file, where a piece of it ends, the piece's CRC-32, `flushed` or `closed`, and the CRC-32 of the
line itself. A piece is what one flush wrote; the next one begins where it ends. A line is written after the fsync of its piece
and is itself fsynced when the part is closed: recording costs no second fsync per flush. So after kill -9 every flush is
covered. After loss of power the last lines may be missing: what they would cover is still read, and counted as unchecked.

A piece that differs from its checksum is a `DecodeError`, as is a closed part that has lost its end. A part without this file
was recorded by an older RelayRL and is unchecked. Not its job: torn ends (`arrow_files`, `csv_files`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from relayrl.errors import DecodeError

_SUFFIX = ".sums"
_FLUSHED, _CLOSED = "flushed", "closed"


class SummedFile:
    """A new file of a part, whose checksums are written beside `part`. Arrow may write through it (`pa.PythonFile`)."""

    def __init__(self, path: Path, part: Path) -> None:
        self._name = part.suffix
        self._crc32 = self._num_bytes = self._num_summed = 0
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
        self._crc32 = zlib.crc32(rest, self._crc32)
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
        self._sums.write(_line(f"{self._name} {self._num_bytes} {self._crc32:08x} {state}"))
        self._crc32, self._num_summed = 0, self._num_bytes


def _line(text: str) -> bytes:
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class _Piece(NamedTuple):
    name: str
    end: int
    crc32: int
    is_last: bool


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
        if zlib.crc32(data[begin : piece.end]) != piece.crc32:
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
        name, end, crc32, state = text.split(" ")
        yield _Piece(name, int(end), int(crc32, 16), state == _CLOSED)
