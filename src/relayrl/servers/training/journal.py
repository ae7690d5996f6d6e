"""What a training server holds durably: trajectories in a sink, and beside it who sent them, in which order.

    journal = Journal("arrow:runs/x/journal", Path("runs/x/journal.index"))
    journal.commit([Entry(client_id, 0, blocks)])      # returns when all of it is durable: now it may be acknowledged
    journal.mark(client_id)                            # 0: the last number of this client that is here
    journal.after(position)                            # trajectories from a place on, for a server that was killed

The sink holds the steps. The index is a file of records, one for each message: client, number, and the ids of its trajectories.

    record = "RLJN", CRC-32 of what follows, 16 bytes client, u64 number, u32 count, 16 bytes of each id; little-endian

Exactly once, whenever the process is killed: a record is written after the sink's flush. Killed between both, the client sends
its message again, and the sink, which stores each `trajectory_id` once, has it once. The index is not synced: what a loss of
power takes from it was either acknowledged, and is not sent again, or is sent again, and is stored once. Records of one
process follow each other in the order in which trajectories are learned from, so a checkpoint needs only a position.

Not its job: checking what it is given (`ingest`), or learning (`remote_experience`).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from relayrl.data.arrow.checked_streams import CheckedStream
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.errors import ConfigError
from relayrl.sinks.buffered import checked_blocks
from relayrl.sinks.contract import open_sink, open_source

_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<16sQI")
_MAGIC = b"RLJN"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a client: its number, and its trajectories, none where they were refused."""

    client_id: UUID
    number: int
    blocks: Sequence[TrajectoryBlock | CheckedStream]

    @property
    def trajectory_ids(self) -> list[bytes]:
        """16 bytes each."""
        return [each for block in self.blocks for each in block.trajectory_ids]

    @property
    def num_trajectories(self) -> int:
        return sum(map(len, self.blocks))


class Journal:
    """See the module's docstring. One thread takes and commits; marks and counts may be read from any."""

    def __init__(self, url: str, index: Path) -> None:
        self._sink = open_sink(url)
        self._url, self._path = url, index
        self._marks: dict[UUID, int] = {}
        self.num_entries = 0
        self.num_trajectories = 0
        try:
            self._file = index.open("a+b", buffering=0)
            self._load()
        except OSError as error:
            self._sink.close()
            raise ConfigError(f"cannot use the journal's index {index}: {error.strerror}") from error

    @property
    def url(self) -> str:
        """Where the trajectories are, without a password."""
        return self._sink.url

    @property
    def clients(self) -> set[UUID]:
        """All whose messages are here."""
        return set(self._marks)

    def mark(self, client_id: UUID) -> int:
        """The last number of a client that is here; -1 where there is none."""
        return self._marks.get(client_id, -1)

    def take(self, entry: Entry) -> None:
        """Hand an entry's trajectories to the sink; durable with the next `commit`. `ConfigError` where it refuses them."""
        if len(entry.blocks) > 1:  # all of them are taken, or none
            for block in entry.blocks:
                if isinstance(block, TrajectoryBlock):
                    checked_blocks(block)
        for block in entry.blocks:
            if isinstance(block, CheckedStream):
                self._sink.write_stream(block)
            else:
                self._sink.write(block)

    def commit(self, entries: Sequence[Entry]) -> None:
        """Make entries that were taken durable. When it raises, it may be called again with the same."""
        self._sink.flush()
        os.write(self._file.fileno(), b"".join(map(_record, entries)))
        for entry in entries:
            self._count(entry.client_id, entry.number, entry.num_trajectories)

    def after(self, position: int) -> list[list[Trajectory]]:
        """The trajectories of every entry from a position on, in order."""
        entries = [ids for _, _, ids in self._records()][position:]
        wanted = {each for ids in entries for each in ids}
        if not wanted:
            return [[] for _ in entries]
        with open_source(self._url) as source:
            found = {t.trajectory_id.bytes: t for t in source if t.trajectory_id.bytes in wanted}
        return [[found[each] for each in ids if each in found] for ids in entries]

    def close(self) -> None:
        """Let go of sink and index."""
        try:
            self._sink.close()
        finally:
            self._file.close()

    def _load(self) -> None:
        end = 0
        for client_id, number, ids in self._records():
            end += _HEAD.size + _BODY.size + 16 * len(ids)
            self._count(client_id, number, len(ids))
        if end < self._path.stat().st_size:
            self._file.truncate(end)  # the process was killed while it wrote; nothing of that was acknowledged

    def _count(self, client_id: UUID, number: int, num_trajectories: int) -> None:
        self._marks[client_id] = max(self.mark(client_id), number)
        self.num_entries += 1
        self.num_trajectories += num_trajectories

    def _records(self) -> list[tuple[UUID, int, list[bytes]]]:
        """All whole records of the index."""
        data = memoryview(self._path.read_bytes())
        found, begin = [], 0
        while (record := _parsed(data[begin:])) is not None:
            found.append(record)
            begin += _HEAD.size + _BODY.size + 16 * len(record[2])
        return found


def _record(entry: Entry) -> bytes:
    ids = entry.trajectory_ids
    body = _BODY.pack(entry.client_id.bytes, entry.number, len(ids)) + b"".join(ids)
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def _parsed(data: memoryview) -> tuple[UUID, int, list[bytes]] | None:
    begin = _HEAD.size + _BODY.size
    if len(data) < begin or bytes(data[:4]) != _MAGIC:
        return None
    _, crc32 = _HEAD.unpack_from(data)
    client, number, count = _BODY.unpack_from(data, _HEAD.size)
    end = begin + 16 * count
    if len(data) < end or zlib.crc32(data[_HEAD.size : end]) != crc32:
        return None
    return UUID(bytes=client), number, [bytes(data[i : i + 16]) for i in range(begin, end, 16)]
