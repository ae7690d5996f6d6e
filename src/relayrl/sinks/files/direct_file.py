"""A file of a part that is written past the page cache: for who writes much, as the journal of a training server does.

    file = DirectFile(path, part)
    file.write(data)                     # held in a buffer, which goes to the disk when it is full
    file.sync()                          # all of it is durable

O_DIRECT takes a fifth of the CPU time of the page cache. It takes whole blocks only, from aligned memory. What comes after
the last whole block stays in the buffer: a sync writes it through the page cache, and the next one writes the whole block
again, its first bytes as they are on the disk already. So a file is never longer than what was written to it, a kill at any
time leaves a torn end and nothing else, and whoever reads sees a plain file.

A file system that refuses O_DIRECT (tmpfs of older kernels, some in user space) and one that wants larger blocks are written
through the page cache, as is every system without it.

Not its job: what is written (`arrow_files`) and its checksums (`parts_sink`).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path

from relayrl.sinks.files.parts_sink import SummedFile

_BLOCK_BYTES = 4096
_BUFFER_BYTES = 2 << 20
_DIRECT_BYTES = 128 << 10
"""From so many bytes on O_DIRECT pays: it waits for the disk once more than the page cache does."""


class DirectFile(SummedFile):
    """A `SummedFile` that writes large pieces, past the page cache where it can."""

    def __init__(self, path: Path, part: Path) -> None:
        self._buffer = memoryview(_aligned_memory(_BUFFER_BYTES))
        super().__init__(path, part)
        self._direct = _opened_direct(path)
        self._begin = 0
        """Where the buffer begins in the file: a whole number of blocks."""
        self._num_written = self._num_held = 0
        """Bytes at the buffer's beginning that are in the file already; all that are in the buffer."""

    def abandon(self) -> None:
        super().abandon()
        self._refrain()

    def _append(self, rest: memoryview) -> None:
        while len(rest):
            piece = rest[: _BUFFER_BYTES - self._num_held]
            self._buffer[self._num_held : self._num_held + len(piece)] = piece
            self._num_held += len(piece)
            rest = rest[len(piece) :]
            if self._num_held == _BUFFER_BYTES:
                self._write_out(_BUFFER_BYTES)

    def _sync_file(self) -> None:
        self._write_out(self._num_held // _BLOCK_BYTES * _BLOCK_BYTES)
        if self._num_held > self._num_written:
            self._sum.add(self._buffer[self._num_written : self._num_held])
            self._write_cached(self._buffer[: self._num_held])
            self._num_written = self._num_held
        super()._sync_file()

    def _write_out(self, size: int) -> None:
        """So many bytes, whole blocks, of the buffer; what is behind them moves to its beginning."""
        if size == 0:
            return
        blocks, rest = self._buffer[:size], self._buffer[size : self._num_held]
        self._sum.add(blocks[self._num_written :])
        if size < _DIRECT_BYTES or not self._is_written_directly(blocks):
            self._write_cached(blocks)
        self._buffer[: len(rest)] = rest
        self._begin += size
        self._num_written, self._num_held = 0, len(rest)

    def _is_written_directly(self, blocks: memoryview) -> bool:
        """False where the file system does not take them so, from now on."""
        done = 0
        try:
            while self._direct is not None and done < len(blocks):
                done += os.pwrite(self._direct, blocks[done:], self._begin + done)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._refrain()
        return self._direct is not None

    def _write_cached(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), data[done:], self._begin + done)

    def _refrain(self) -> None:
        """From O_DIRECT."""
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None


def _aligned_memory(size: int) -> mmap.mmap:
    """Whole pages, large ones where the system has them: one fault instead of 512, of which each may take 2 µs."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not on macOS
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _opened_direct(path: Path) -> int | None:
    """A descriptor of the file for writing past the page cache; None where that cannot be."""
    flag = getattr(os, "O_DIRECT", 0)  # not on macOS
    try:
        return os.open(path, os.O_WRONLY | flag) if flag else None
    except OSError:
        return None
