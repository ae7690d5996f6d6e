"""Sinks that write part files into a directory: unique names, durable creation, parts that stay open from flush to flush.

    DIR/part-<when the writer began>-<writer>-<number>.<suffix>
    DIR/part-<…>.sums         checksums of the part, a line for each flush
    DIR/abandoned-<…>.txt     ids of trajectories that their run took back, a line each

A writer never touches a part of another one, nor one from before it was opened; so any number of processes may write into a
directory, and a torn end of a part is the last thing that its writer did. Names sort by writer and then by number, which is
the order in which parts were begun.

    .arrows 81920 grid:9f3c01aa flushed 5d20b1c7

A line of checksums is the suffix of the file, where a piece of it ends, the piece's checksum (a `GridSum`), `flushed` or
`closed`, and the CRC-32 of the line itself. A piece is what one flush wrote; the next one begins where it ends. A line is
written after the fsync of its piece and is itself fsynced when the part is closed: recording costs no second fsync per flush.
So after kill -9 every flush is covered. After loss of power the last lines may be missing: what they would cover is still read,
and counted as unchecked.

Not its job: what is in a part (`arrow_files`, `parquet_files`, `csv_files`) or reading parts (`parts_source`).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa

from relayrl.compiled.loader import row_kernels
from relayrl.data.arrow.arrow_writing import to_batches
from relayrl.data.arrow.schema import Layout
from relayrl.data.trajectory_block import TrajectoryBlock, num_trajectories
from relayrl.errors import ConfigError, SinkWriteError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.contract import rest_of
from relayrl.sinks.sink_settings import FileSettings, SinkSettings

SUMS_SUFFIX = ".sums"
FLUSHED, CLOSED = "flushed", "closed"
GRID = "grid:"
_MAX_OPEN_PARTS = 16
_ROW_WORDS = 512
_ROW_BYTES = 8 * _ROW_WORDS


class PartNames:
    """Names that no other writer gives."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self._directory = directory
        self._suffix = suffix
        self._writer = f"{time.time_ns():020d}-{uuid4().hex[:12]}"
        self._numbers = itertools.count()

    def next(self) -> Path:
        """A path at which nothing is."""
        return self._directory / f"part-{self._writer}-{next(self._numbers):06d}{self._suffix}"

    def next_abandoned(self) -> Path:
        """The same, for ids of abandoned trajectories."""
        return self._directory / f"abandoned-{self._writer}-{next(self._numbers):06d}.txt"


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably."""
    try:
        if path.is_dir():
            return
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {path!s:.200}: {error.strerror}") from error
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """fsync of a file's data or a directory's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class GridSum:
    """A checksum of bytes that come in pieces of any length, in a fifth of the time of a CRC-32.

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
        sums = np.empty(len(data) // _ROW_BYTES, "<u8")
        kernels = row_kernels() if sys.byteorder == "little" else None
        if kernels is not None:
            kernels.sum_grid(data, self._columns, sums)
        else:
            words = np.frombuffer(data, "<u8").reshape(-1, _ROW_WORDS)
            self._columns += np.add.reduce(words, 0)
            np.add.reduce(words, 1, out=sums)
        self._rows_crc32 = zlib.crc32(sums.data, self._rows_crc32)


class SummedFile:
    """A new file of a part, whose checksums are written beside `part`. Arrow may write through it (`pa.PythonFile`)."""

    def __init__(self, path: Path, part: Path) -> None:
        self._name = part.suffix
        self._sum = GridSum()
        self._num_bytes = self._num_summed = 0
        self._file = path.open("xb", buffering=0)
        try:
            self._sums = part.with_suffix(SUMS_SUFFIX).open("ab", buffering=0)
        except OSError:
            self._file.close()
            raise

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes | memoryview | pa.Buffer) -> int:
        """All of it."""
        rest = memoryview(data).cast("B")
        self._num_bytes += len(rest)
        self._append(rest)
        return len(rest)

    def flush(self) -> None:
        """What is buffered waits for `sync`."""

    def tell(self) -> int:
        return self._num_bytes

    def sync(self) -> None:
        """Return when what was written is durable, and has its checksum."""
        self._sync_file()
        if self._num_bytes > self._num_summed:
            self._add_line(FLUSHED)

    def close(self) -> None:
        """No more is to come, durably; a second call does nothing."""
        if not self.closed:
            self._sync_file()
            self._add_line(CLOSED)
            os.fsync(self._sums.fileno())
            self.abandon()

    def abandon(self) -> None:
        """Let go of both files as they are."""
        self._file.close()
        self._sums.close()

    def _append(self, rest: memoryview) -> None:
        """To file and checksum; a subclass may hold it back until `_sync_file`."""
        self._sum.add(rest)
        while len(rest):
            rest = rest[self._file.write(rest) :]

    def _sync_file(self) -> None:
        os.fsync(self._file.fileno())
        if hasattr(
            os, "posix_fadvise"
        ):  # nobody reads it soon: leave the memory to others, and have the same pages again
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _add_line(self, state: str) -> None:
        self._sums.write(sums_line(f"{self._name} {self._num_bytes} {GRID}{self._sum.take():08x} {state}"))
        self._num_summed = self._num_bytes


def sums_line(text: str) -> bytes:
    """A line of checksums with its own."""
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class PartsSink(BufferedSink):
    """Adds parts with `suffix` to the directory of a URL."""

    def __init__(self, url: str, settings: SinkSettings, suffix: str) -> None:
        super().__init__(url, settings)
        self._directory = Path(rest_of(url, "DIR"))
        make_directory(self._directory)
        self._names = PartNames(self._directory, suffix)

    def _mark(self, trajectory_ids: Collection[UUID]) -> None:
        try:
            path = self._names.next_abandoned()
            file = SummedFile(path.with_suffix(".tmp"), path)
            file.write("".join(f"{each}\n" for each in trajectory_ids).encode())
            file.close()
            path.with_suffix(".tmp").rename(path)
            sync_path(self._directory)
        except OSError as error:
            raise SinkWriteError(f"cannot write to {self._url}: {error}", len(trajectory_ids)) from error


class OpenPart(ABC):
    """A file under construction."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout  # keeps the id alive by which the sink finds this part
        self.is_new = True
        self.is_closed = False
        self._num_rows = 0

    def is_full(self, limits: FileSettings) -> bool:
        """Whether another part should begin."""
        return self._num_rows >= limits.max_part_rows or self._num_bytes() >= limits.max_part_bytes

    @abstractmethod
    def _num_bytes(self) -> int:
        """The file's length."""

    @abstractmethod
    def sync(self) -> None:
        """Return when what was written is durable; a closed part is."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file, durably; a second call does nothing."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go without another word in the file."""


class BatchPart(OpenPart):
    """A part that is written batch by batch."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._append(batch)
        self._num_rows += batch.num_rows

    @abstractmethod
    def _append(self, batch: pa.RecordBatch) -> None:
        """Rows at the end of the file."""


P = TypeVar("P", bound=OpenPart)


class OpenPartsSink(PartsSink):
    """Keeps one open part per layout and kind of part."""

    def __init__(self, url: str, settings: SinkSettings, suffix: str) -> None:
        super().__init__(url, settings, suffix)
        self._parts: dict[Hashable, OpenPart] = {}

    @abstractmethod
    def _begin_part(self, path: Path, layout: Layout) -> BatchPart:
        """A new file."""

    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
        is_written = False
        try:
            touched = self._append(blocks)
            for part in touched:
                part.sync()
            if any(part.is_new for part in touched):
                sync_path(self._directory)
            for part in touched:
                part.is_new = False
            self._close_full_parts()
            is_written = True
        except (OSError, pa.ArrowException) as error:
            raise SinkWriteError(f"cannot write to {self._url}: {error}", num_trajectories(blocks)) from error
        finally:  # whatever it was, even Ctrl-C
            if not is_written:
                self._abandon_parts()

    def _append(self, blocks: Sequence[TrajectoryBlock]) -> list[OpenPart]:
        touched = dict[int, OpenPart]()
        for layout, batch in to_batches(blocks, self._settings.files.max_batch_rows):
            part = self._part(BatchPart, layout, self._begin_part)  # type: ignore[type-abstract]  # it is never made
            part.write(batch)
            touched[id(part)] = part
        return list(touched.values())

    def _part(self, kind: type[P], layout: Layout, begin: Callable[[Path, Layout], P]) -> P:
        """The part of a layout that has room."""
        part = self._parts.get((kind, id(layout)))
        if not isinstance(part, kind) or part.is_full(self._settings.files):
            if part is not None:
                part.close()
            self._parts[kind, id(layout)] = part = begin(self._names.next(), layout)
        return part

    def _close_full_parts(self) -> None:
        for key, part in list(self._parts.items()):
            if part.is_full(self._settings.files) or len(self._parts) > _MAX_OPEN_PARTS:
                self._parts.pop(key).close()

    def _abandon_parts(self) -> None:
        """Nobody knows what a part ends with now, nor which pages fsync gave up on: write no more to any."""
        for part in self._parts.values():
            part.abandon()
        self._parts.clear()

    def _release(self) -> None:
        try:
            for part in self._parts.values():
                part.close()
        except (OSError, pa.ArrowException) as error:
            raise SinkWriteError(f"cannot close the parts of {self._url}: {error}", 0) from error
        finally:
            self._abandon_parts()
