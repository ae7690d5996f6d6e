"""A bounded queue on disk: what an actor has recorded and its server has not acknowledged yet.

    spool = take_spool(Path("spool"))      # the first directory there that no other process uses
    number = spool.append(frames)          # `SpoolFullError` where there is no room: whoever records has to wait
                                           # from here on it survives kill -9, and may be sent
    spool.sync()                           # from here on it survives loss of power too
    spool.acknowledge(number)              # the server holds everything up to this number durably

    DIR/client_id                          who this is, as long as the directory exists
    DIR/segment-<first number>.spool       records, one after the other
    record = "RLSP", CRC-32 of what follows, u64 number, u32 count of frames, u32 length of each, the frames; little-endian

Numbers begin at 0, have no gaps and are never used twice: the newest segment stays when everything is acknowledged, and its
name carries the next number. A record that was being written when its process was killed is cut off when the spool is opened.

What a server acknowledges soon is never synced: it is durable there. What waits longer than `sync_after_s` is synced by the
thread that sends. So a loss of power takes what was recorded within that time and did not reach the server. It may also take
numbers that the server has seen; then the server's welcome names its next one, and numbering goes on from there.

Not its job: what the frames hold, and sending them (`server_link`).
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import quote
from uuid import UUID, uuid4

from pydantic import Field

from relayrl.config.settings import Settings
from relayrl.errors import ConfigError, SinkClosedError, SinkError, SinkWriteError, SpoolFullError

_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<QI")
_MAGIC = b"RLSP"
_ID_FILE, _LOCK_FILE = "client_id", "lock"
_MAX_SPOOLS = 10_000

Frames = Sequence["bytes | memoryview"]


class SpoolSettings(Settings):
    """How much an actor keeps for a server that does not answer."""

    max_bytes: int = Field(256 << 20, ge=1, description="unacknowledged bytes on disk; then the environments wait")
    segment_bytes: int = Field(16 << 20, ge=1, description="size at which another file begins")
    sync_after_s: float = Field(
        0.2, ge=0, description="what is not acknowledged within so many seconds is synced, against loss of power"
    )


@dataclass(slots=True, eq=False)
class _Segment:
    """One file; `num_left` of its records are not acknowledged."""

    path: Path
    file: BinaryIO
    num_bytes: int = 0
    num_left: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a record lies."""

    number: int
    segment: _Segment
    offset: int
    num_bytes: int
    appended_s: float = 0.0


class Spool:
    """See the module's docstring. All methods may be called from any thread."""

    def __init__(self, directory: Path, settings: SpoolSettings | None = None) -> None:
        self.directory, self._settings = directory, settings or SpoolSettings()
        # What is acknowledged leaves the disk with its whole segment.
        self._segment_bytes = min(self._settings.segment_bytes, self._settings.max_bytes // 4)
        self._changed = threading.Condition()
        self._is_closed = False
        self._places: deque[_Place] = deque()
        self._segments: deque[_Segment] = deque()
        self._lock_file = _locked(directory)
        try:
            self.client_id = _own_id(directory)
            self._num_bytes = 0
            self._next = 0
            self._load()
            self._num_synced = self._next
        except BaseException:
            self._release()
            raise

    @property
    def next_number(self) -> int:
        """The number that the next record gets."""
        return self._next

    @property
    def first_unacknowledged(self) -> int:
        """The oldest record that is here; the next number where there is none."""
        with self._changed:
            return self._places[0].number if self._places else self._next

    @property
    def end_of_synced(self) -> int:
        """The number behind the last record that survives a loss of power, here or at the server."""
        return self._num_synced

    @property
    def num_bytes(self) -> int:
        """Bytes that are not acknowledged."""
        return self._num_bytes

    @property
    def num_waiting(self) -> int:
        """Records that are not acknowledged."""
        return len(self._places)

    def has_room(self, num_bytes: int = 0) -> bool:
        """Whether a record of so many bytes would be taken now."""
        return not self._places or self._num_bytes + num_bytes <= self._settings.max_bytes

    def wait_for_room(self, num_bytes: int, timeout_s: float) -> bool:
        """Wait for an acknowledgement to make room; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or self.has_room(num_bytes), timeout_s)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or not self._places, timeout_s)

    def append(self, frames: Frames, *, is_last: bool = False) -> int:
        """Take a record; gives its number. `SpoolFullError`, and nothing is taken, where it does not fit now.

        The last record of somebody who has to go is taken beyond the bound.
        """
        parts = [memoryview(frame).cast("B") for frame in frames]
        body: list[bytes | memoryview] = [
            _BODY.pack(0, len(parts)),
            struct.pack(f"<{len(parts)}I", *map(len, parts)),
            *parts,
        ]
        num_bytes = _HEAD.size + sum(map(len, body))
        if num_bytes > self._settings.max_bytes:
            raise ConfigError(
                f"a record of {num_bytes} bytes does not fit a spool of {self._settings.max_bytes}; raise it"
            )
        with self._changed:
            self._require_open()
            if not is_last and not self.has_room(num_bytes):
                raise SpoolFullError(
                    f"{self._num_bytes} bytes wait in {self.directory} for the server's acknowledgement; "
                    "look whether the server runs, or raise the spool's max_bytes"
                )
            number = self._next
            body[0] = _BODY.pack(number, len(parts))
            segment = self._writable()
            offset = segment.num_bytes
            try:
                _write_all(segment.file, [_HEAD.pack(_MAGIC, _checksum(body)), *body])
            except OSError as error:
                with contextlib.suppress(OSError):
                    segment.file.truncate(offset)
                raise SinkWriteError(f"cannot write {segment.path}: {error.strerror}", 1) from error
            segment.num_bytes += num_bytes
            segment.num_left += 1
            self._places.append(_Place(number, segment, offset, num_bytes, time.monotonic()))
            self._num_bytes += num_bytes
            self._next += 1
            return number

    def sync_due_s(self) -> float | None:
        """Seconds until something has waited for its acknowledgement so long that it should be synced; None: nothing does."""
        with self._changed:
            oldest = None if self._is_closed else self._place(self._num_synced)
            if oldest is None:
                return None
            return max(0.0, oldest.appended_s + self._settings.sync_after_s - time.monotonic())

    def sync(self) -> None:
        """Return when everything appended survives a loss of power."""
        with self._changed:
            self._require_open()
            end, segment = self._next, self._segments[-1]
            if end == self._num_synced:
                return
        try:
            os.fsync(segment.file.fileno())  # older segments were synced when this one began
        except OSError as error:
            raise SinkWriteError(f"cannot sync {segment.path}: {error.strerror}", end - self._num_synced) from error
        with self._changed:
            self._num_synced = max(self._num_synced, end)

    def read(self, number: int) -> list[bytes] | None:
        """The frames of a record; None where it is acknowledged already."""
        with self._changed:
            self._require_open()
            place = self._place(number)
            if place is None:
                return None
            data = os.pread(place.segment.file.fileno(), place.num_bytes, place.offset)
        found = _parsed(data)
        if found is None or found[0] != number:
            raise SinkError(f"record {number} of {place.segment.path} is damaged; the disk has changed it")
        return found[1]

    def acknowledge(self, through: int) -> int:
        """The server holds all records up to and including this number; gives how many of them were here."""
        with self._changed:
            num_before = len(self._places)
            while self._places and self._places[0].number <= through:
                place = self._places.popleft()
                place.segment.num_left -= 1
                self._num_bytes -= place.num_bytes
            self._num_synced = max(self._num_synced, through + 1)
            if through >= self._next:  # the server knows of more than is here: those numbers are used
                self._next = through + 1
                self._begin_segment()
            self._drop_acknowledged()
            self._changed.notify_all()
            return num_before - len(self._places)

    def close(self) -> None:
        """Make everything durable and let go of the directory; a second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
        try:
            self.sync()
        finally:
            with self._changed:
                self._is_closed = True
                self._release()
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._lock_file.close()

    def _place(self, number: int) -> _Place | None:
        if not self._places or not self._places[0].number <= number < self._next:
            return None
        return self._places[number - self._places[0].number]

    def _require_open(self) -> None:
        if self._is_closed:
            raise SinkClosedError(f"the spool {self.directory} is closed")

    def _writable(self) -> _Segment:
        if self._segments[-1].num_bytes >= self._segment_bytes:
            os.fsync(self._segments[-1].file.fileno())
            self._begin_segment()
            self._drop_acknowledged()
        return self._segments[-1]

    def _begin_segment(self) -> None:
        path = self.directory / f"segment-{self._next:020d}.spool"
        self._segments.append(_Segment(path, path.open("x+b", buffering=0)))
        _sync_directory(self.directory)

    def _drop_acknowledged(self) -> None:
        while len(self._segments) > 1 and not self._segments[0].num_left:
            segment = self._segments.popleft()
            segment.file.close()
            segment.path.unlink()

    def _load(self) -> None:
        paths = sorted(self.directory.glob("segment-*.spool"))
        for path in paths:
            self._next = max(self._next, int(path.stem.removeprefix("segment-")))
            self._load_segment(path, is_newest=path == paths[-1])
        if not self._segments:
            self._begin_segment()

    def _load_segment(self, path: Path, *, is_newest: bool) -> None:
        segment = _Segment(path, path.open("r+b", buffering=0))
        self._segments.append(segment)
        data = path.read_bytes()
        while (found := _parsed(memoryview(data)[segment.num_bytes :])) is not None:
            number, _, num_bytes = found
            self._places.append(_Place(number, segment, segment.num_bytes, num_bytes))
            segment.num_bytes += num_bytes
            segment.num_left += 1
            self._num_bytes += num_bytes
            self._next = number + 1
        if segment.num_bytes < len(data):
            if not is_newest:
                raise SinkError(
                    f"{path} is damaged at byte {segment.num_bytes}; move it away to go on without the rest of it"
                )
            segment.file.truncate(segment.num_bytes)  # its writer was killed; it had not been synced
        segment.file.seek(segment.num_bytes)
        os.fsync(segment.file.fileno())


def take_spool(base: Path, settings: SpoolSettings | None = None) -> Spool:
    """The first spool below `base` that no process uses, an abandoned one with all that it holds before a new one."""
    for number in range(_MAX_SPOOLS):
        with contextlib.suppress(SpoolTakenError):
            return Spool(base / f"actor-{number}", settings)
    raise ConfigError(f"{_MAX_SPOOLS} spools below {base} are in use; give another directory")


def default_spool_base(address: str) -> Path:
    """Where the spools of one server's clients lie unless they are told: below the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "relayrl" / "spool" / quote(address, safe="")


class SpoolTakenError(ConfigError):
    """Another process uses the spool."""


def _checksum(parts: Sequence[bytes | memoryview]) -> int:
    crc32 = 0
    for part in parts:
        crc32 = zlib.crc32(part, crc32)
    return crc32


def _write_all(file: BinaryIO, parts: Sequence[bytes | memoryview]) -> None:
    rest = memoryview(b"".join(parts))
    while len(rest):
        rest = rest[file.write(rest) :]


def _parsed(data: bytes | memoryview) -> tuple[int, list[bytes], int] | None:
    """Number, frames and length of the record at the beginning; None where there is no whole one."""
    view = memoryview(data)
    begin = _HEAD.size + _BODY.size
    if len(view) < begin or bytes(view[:4]) != _MAGIC:
        return None
    _, crc32 = _HEAD.unpack_from(view)
    number, num_frames = _BODY.unpack_from(view, _HEAD.size)
    if len(view) < begin + 4 * num_frames:
        return None
    lengths = struct.unpack_from(f"<{num_frames}I", view, begin)
    begin += 4 * num_frames
    end = begin + sum(lengths)
    if len(view) < end or zlib.crc32(view[_HEAD.size : end]) != crc32:
        return None
    frames = []
    for length in lengths:
        frames.append(bytes(view[begin : begin + length]))
        begin += length
    return number, frames, end


def _locked(directory: Path) -> BinaryIO:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _LOCK_FILE).open("ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"cannot use the spool {directory}: {error.strerror}; choose another directory") from error
    try:
        import fcntl
    except ImportError:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise SpoolTakenError(f"another process uses the spool {directory}; give each actor its own") from error
    return file


def _own_id(directory: Path) -> UUID:
    path = directory / _ID_FILE
    try:
        return UUID(path.read_text().strip())
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise SinkError(f"{path} holds no id; remove {directory} if nothing in it is wanted") from error
    client_id = uuid4()
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(f"{client_id}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _sync_directory(directory)
    return client_id


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
