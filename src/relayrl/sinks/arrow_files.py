"""`arrow:DIR`: part files that are Arrow IPC streams, readable by any Arrow program while they are being written.

A flush appends record batches to the open part of each layout and fsyncs it. A stream needs no footer: when its writer is
killed, everything up to the last whole message is there. A part that was closed ends with Arrow's end-of-stream mark; damage
inside such a part is an error, never a torn end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from relayrl.data.codec import Compression
from relayrl.data.schema import Layout, layout_of
from relayrl.errors import DecodeError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.checked_trajectory import CheckedTrajectory
from relayrl.sinks.contract import SinkWriteError, TrajectorySink, TrajectorySource, rest_of
from relayrl.sinks.part_files import PartNames, PartsSource, make_directory, sync_path
from relayrl.sinks.row_batches import Workspace, to_batches
from relayrl.sinks.sink_settings import SinkSettings

SUFFIX = ".arrows"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_MAX_OPEN_PARTS = 16


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink that begins new parts in the directory of `url`."""
    return ArrowSink(url, Path(rest_of(url, "DIR")), settings)


def open_source(url: str) -> TrajectorySource:
    """All parts in the directory of `url`."""
    return ArrowSource(url, Path(rest_of(url, "DIR")), SUFFIX)


class ArrowSink(BufferedSink):
    """Keeps one open part per layout."""

    def __init__(self, url: str, directory: Path, settings: SinkSettings) -> None:
        super().__init__(url, settings)
        make_directory(directory)
        self._directory = directory
        self._names = PartNames(directory, SUFFIX)
        self._workspace = Workspace()
        self._parts: dict[int, _OpenPart] = {}

    def _persist(self, records: Sequence[CheckedTrajectory]) -> None:
        is_written = False
        try:
            touched = self._append(records)
            for part in touched:
                part.sync()
            if any(part.is_new for part in touched):
                sync_path(self._directory)
            for part in touched:
                part.is_new = False
            self._close_full_parts()
            is_written = True
        except (OSError, pa.ArrowException) as error:
            raise SinkWriteError(f"cannot write to {self._url}: {error}", len(records)) from error
        finally:  # whatever it was, even Ctrl-C
            if not is_written:
                self._abandon_parts()

    def _append(self, records: Sequence[CheckedTrajectory]) -> list[_OpenPart]:
        limits, touched = self._settings.files, dict[int, _OpenPart]()
        for layout, batch in to_batches(records, limits.max_batch_rows, self._workspace):
            part = self._parts.get(id(layout))
            if part is None or part.is_full(limits.max_part_bytes, limits.max_part_rows):
                if part is not None:
                    part.close()
                part = _OpenPart(self._names.next(), layout, limits.arrow_compression)
                self._parts[id(layout)] = part
            part.write(batch)
            touched[id(part)] = part
        return [part for part in touched.values() if not part.is_closed]

    def _close_full_parts(self) -> None:
        limits = self._settings.files
        for key, part in list(self._parts.items()):
            if part.is_full(limits.max_part_bytes, limits.max_part_rows) or len(self._parts) > _MAX_OPEN_PARTS:
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


class _OpenPart:
    """A stream under construction. Arrow writes through a file of its own; fsync is of the same file by a descriptor."""

    def __init__(self, path: Path, layout: Layout, compression: Compression) -> None:
        self.layout = layout  # keeps the id alive by which the sink finds this part
        self.is_new = True
        self.is_closed = False
        self._num_rows = 0
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            self._file = pa.OSFile(str(path), "ab")
            codec = None if compression is Compression.NONE else compression.value
            options = pa.ipc.IpcWriteOptions(compression=codec)
            self._writer = pa.ipc.new_stream(self._file, layout.schema, options=options)
        except (OSError, pa.ArrowException):
            os.close(self._descriptor)
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._num_rows += batch.num_rows

    def is_full(self, max_bytes: int, max_rows: int) -> bool:
        return self._num_rows >= max_rows or self._file.tell() >= max_bytes

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        """The end-of-stream mark, durable."""
        if self.is_closed:
            return
        self._writer.close()
        self._file.close()
        os.fsync(self._descriptor)
        self.abandon()

    def abandon(self) -> None:
        """Let go without another word in the file."""
        if not self.is_closed:
            self.is_closed = True
            os.close(self._descriptor)
            if not self._file.closed:
                self._file.close()


class ArrowSource(PartsSource):
    """Maps parts into memory; uncompressed columns are views of the file."""

    def _read(self, path: Path) -> Iterator[tuple[Layout, pa.RecordBatch]]:
        buffer = self._whole_messages(path)
        if buffer is None:
            return
        try:
            with pa.ipc.open_stream(buffer) as reader:
                layout = layout_of(reader.schema)
                for batch in reader:
                    yield layout, batch
        except (pa.ArrowException, OSError, DecodeError) as error:
            raise DecodeError(f"{path} is damaged: {error}") from error

    def _read_layout(self, path: Path) -> Layout | None:
        buffer = self._whole_messages(path)
        if buffer is None:
            return None
        with pa.ipc.open_stream(buffer) as reader:
            return layout_of(reader.schema)

    def _whole_messages(self, path: Path) -> pa.Buffer | None:
        """The part up to its last whole record batch; None if there is not even one."""
        if path.stat().st_size == 0:
            return None
        with pa.memory_map(str(path)) as file:
            buffer = file.read_buffer()
        end, is_whole = _last_batch_end(buffer)
        if not is_whole:
            if buffer.slice(max(0, buffer.size - 8)).to_pybytes() == _END_OF_STREAM:
                raise DecodeError(f"{path} was closed, but is damaged {buffer.size - end} bytes before its end")
            self._note_torn(path, buffer.size - end)
        return buffer.slice(0, end) if end else None


def _last_batch_end(buffer: pa.Buffer) -> tuple[int, bool]:
    """Where the last whole record batch ends, and whether only the end-of-stream mark or nothing follows it."""
    file, end = pa.BufferReader(buffer), 0
    messages = pa.ipc.MessageReader.open_stream(file)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return end, file.tell() == buffer.size
        except (pa.ArrowException, OSError):
            return end, False
        if message.type == "record batch":
            end = file.tell()
