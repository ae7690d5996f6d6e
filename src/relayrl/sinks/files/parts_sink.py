"""Sinks that write part files into a directory: unique names, durable creation, parts that stay open from flush to flush.

    DIR/part-<when the writer began>-<writer>-<number>.<suffix>
    DIR/abandoned-<…>.txt     ids of trajectories that their run took back, a line each

A writer never touches a part of another one, nor one from before it was opened; so any number of processes may write into a
directory, and a torn end of a part is the last thing that its writer did. Names sort by writer and then by number, which is
the order in which parts were begun.

Not its job: what is in a part (`arrow_files`, `parquet_files`, `csv_files`) or reading parts (`parts_source`).
"""

from __future__ import annotations

import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa

from relayrl.data.arrow.block_batches import to_batches
from relayrl.data.arrow.schema import Layout
from relayrl.data.trajectory_block import TrajectoryBlock, num_trajectories
from relayrl.errors import ConfigError, SinkWriteError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.contract import rest_of
from relayrl.sinks.files.part_sums import SummedFile
from relayrl.sinks.sink_settings import FileSettings, SinkSettings

_MAX_OPEN_PARTS = 16


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

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._append(batch)
        self._num_rows += batch.num_rows

    def is_full(self, limits: FileSettings) -> bool:
        """Whether another part should begin."""
        return self._num_rows >= limits.max_part_rows or self._num_bytes() >= limits.max_part_bytes

    @abstractmethod
    def _append(self, batch: pa.RecordBatch) -> None:
        """Rows at the end of the file."""

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


class OpenPartsSink(PartsSink):
    """Keeps one open part per layout."""

    def __init__(self, url: str, settings: SinkSettings, suffix: str) -> None:
        super().__init__(url, settings, suffix)
        self._parts: dict[int, OpenPart] = {}

    @abstractmethod
    def _begin_part(self, path: Path, layout: Layout) -> OpenPart:
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
        limits, touched = self._settings.files, dict[int, OpenPart]()
        for layout, batch in to_batches(blocks, limits.max_batch_rows):
            part = self._parts.get(id(layout))
            if part is None or part.is_full(limits):
                if part is not None:
                    part.close()
                part = self._parts[id(layout)] = self._begin_part(self._names.next(), layout)
            part.write(batch)
            touched[id(part)] = part
        return list(touched.values())

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
