"""`arrow:DIR`: part files that are Arrow IPC streams, readable by any Arrow program while they are being written.

A flush appends record batches to the open part of each layout and fsyncs it. A stream needs no footer: when its writer is
killed, everything up to the last whole message is there. A part that was closed ends with Arrow's end-of-stream mark; damage
inside such a part is an error, never a torn end. So is a piece that differs from its checksum (`parts_source`).

Streams that came over a wire and were checked are such messages already: without compression their bytes are appended as they
are, to parts of their own, since Arrow's writer leaves out a dictionary that it wrote last.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from relayrl.data.arrow.checked_streams import CheckedStream
from relayrl.data.arrow.codec import Compression
from relayrl.data.arrow.schema import Layout, layout_of
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.errors import DecodeError
from relayrl.sinks.contract import TrajectorySink, TrajectorySource
from relayrl.sinks.files.direct_file import DirectFile
from relayrl.sinks.files.parts_sink import BatchPart, OpenPart, OpenPartsSink, SummedFile
from relayrl.sinks.files.parts_source import PartsSource, check_sums
from relayrl.sinks.sink_settings import SinkSettings

SUFFIX = ".arrows"
_BUFFER_BYTES = 1 << 20
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink that begins new parts in the directory of `url`."""
    return ArrowSink(url, settings, SUFFIX)


def open_source(url: str) -> TrajectorySource:
    """All parts in the directory of `url`."""
    return ArrowSource(url, SUFFIX)


class ArrowSink(OpenPartsSink):
    """One stream per layout, and another one for what is appended as it came."""

    def __init__(self, url: str, settings: SinkSettings, suffix: str) -> None:
        super().__init__(url, settings, suffix)
        self._streams: list[CheckedStream] = []

    def write_stream(self, stream: CheckedStream) -> None:
        with self._lock:
            is_new = self._held_ids.isdisjoint(stream.trajectory_ids)
            if not is_new or self._settings.files.arrow_compression is not Compression.NONE:
                super().write_stream(stream)
                return
            self._require_open("write")
            self._make_room()
            self._streams.append(stream)
            self._note_held(stream.trajectory_ids, stream.num_bytes)

    def _begin_part(self, path: Path, layout: Layout) -> BatchPart:
        return _WrittenPart(path, layout, self._settings.files.arrow_compression)

    def _append(self, blocks: Sequence[TrajectoryBlock]) -> list[OpenPart]:
        touched = {id(part): part for part in super()._append(blocks)}
        for stream in self._streams:
            part = self._part(_ReceivedPart, stream.layout, _ReceivedPart)
            part.write(stream)
            touched[id(part)] = part
        return list(touched.values())

    def _let_go(self) -> None:
        super()._let_go()
        self._streams.clear()


class _StreamPart(OpenPart):
    """Writes go through a buffer: a flush is few large ones, which take less time than one or two per column."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(layout)
        self._file = SummedFile(path, path)
        try:
            self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), _BUFFER_BYTES)
            self._begin()
        except (OSError, pa.ArrowException):
            self._file.abandon()
            raise

    @abstractmethod
    def _begin(self) -> None:
        """The schema."""

    @abstractmethod
    def _end(self) -> None:
        """The end-of-stream mark."""

    def _num_bytes(self) -> int:
        return int(self._buffered.tell())

    def sync(self) -> None:
        if not self.is_closed:
            self._buffered.flush()
            self._file.sync()

    def close(self) -> None:
        """The end-of-stream mark, durable."""
        if self.is_closed:
            return
        self._end()
        self._buffered.close()
        self._file.close()
        self.is_closed = True

    def abandon(self) -> None:
        self.is_closed = True
        self._file.abandon()


class _WrittenPart(_StreamPart, BatchPart):
    """What Arrow's writer makes of batches."""

    def __init__(self, path: Path, layout: Layout, compression: Compression) -> None:
        self._codec = None if compression is Compression.NONE else compression.value
        super().__init__(path, layout)

    def _begin(self) -> None:
        options = pa.ipc.IpcWriteOptions(compression=self._codec)
        self._writer = pa.ipc.new_stream(self._buffered, self.layout.schema, options=options)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def _end(self) -> None:
        self._writer.close()


class _ReceivedPart(OpenPart):
    """Streams of one schema as they came, one after the other."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(layout)
        self._file = DirectFile(path, path)
        self._file.write(layout.fingerprint)

    def write(self, stream: CheckedStream) -> None:
        """Append dictionaries and batch."""
        self._file.write(stream.body)
        self._num_rows += stream.num_rows

    def _num_bytes(self) -> int:
        return self._file.tell()

    def sync(self) -> None:
        if not self.is_closed:
            self._file.sync()

    def close(self) -> None:
        """The end-of-stream mark, durable."""
        if not self.is_closed:
            self._file.write(_END_OF_STREAM)
            self._file.close()
            self.is_closed = True

    def abandon(self) -> None:
        self.is_closed = True
        self._file.abandon()


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
        check_sums(path, first_piece_only=True)
        buffer = self._whole_messages(path)
        if buffer is None:
            return None
        try:
            with pa.ipc.open_stream(buffer) as reader:
                return layout_of(reader.schema)
        except (pa.ArrowException, OSError, DecodeError) as error:
            raise DecodeError(f"{path} is damaged: {error}") from error

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
