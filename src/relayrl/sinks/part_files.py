"""Directories of part files: unique names, durable creation, and a source that reads all parts as one.

    DIR/part-<when the writer began>-<writer>-<number>.<suffix>

A writer never touches a part of another one, nor one from before it was opened; so any number of processes may write into a
directory, and a torn end of a part is the last thing that its writer did. Names sort by writer and then by number, which is
the order in which parts were begun.

Not its job: what is in a part (`arrow_files`, `parquet_files`, `csv_files`) or writing them (`parts_sink`).
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa

from relayrl.data.columns import Trajectory
from relayrl.data.schema import Layout
from relayrl.errors import ConfigError, DecodeError
from relayrl.sinks.contract import ReadReport, SinkClosedError, SourceCount, TrajectorySource, rest_of
from relayrl.sinks.row_batches import count_rows, from_batch

SUFFIXES = {".arrows": "arrow", ".parquet": "parquet", ".csv": "csv"}
_log = logging.getLogger(__name__)


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


def write_whole(path: Path, data: bytes) -> None:
    """A file that is there whole and durable, or not at all. Its directory entry still wants `sync_path`."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


class PartsSource(TrajectorySource):
    """Reads every part in order of names and leaves out trajectories that it has seen."""

    def __init__(self, url: str, suffix: str) -> None:
        directory = Path(rest_of(url, "DIR"))
        if not directory.is_dir():
            raise ConfigError(f"{url} holds nothing: there is no directory {directory}")
        others = {kind for found in directory.iterdir() if (kind := SUFFIXES.get(found.suffix))}
        if others and SUFFIXES[suffix] not in others:
            kind = min(others)
            raise ConfigError(f"{url} holds nothing, but there are {kind} files; write {kind}:{directory}")
        self._url = url
        self._directory = directory
        self._suffix = suffix
        self._is_closed = False
        self.report = ReadReport()

    @property
    def url(self) -> str:
        return self._url

    def __iter__(self) -> Iterator[Trajectory]:
        seen: set[UUID] = set()
        for path in self._begin():
            for layout, batch in self._read(path):
                for trajectory in self._split(path, batch, layout):
                    if trajectory.trajectory_id in seen:
                        self.report.num_duplicates += 1
                        continue
                    seen.add(trajectory.trajectory_id)
                    yield trajectory

    def count(self) -> SourceCount:
        lengths: dict[UUID, int] = {}
        for path in self._begin():
            for ids in self._read_ids(path):
                for trajectory_id, num_steps in count_rows(ids):
                    self.report.num_duplicates += trajectory_id in lengths
                    lengths.setdefault(trajectory_id, num_steps)
        return SourceCount(len(lengths), sum(lengths.values()))

    def layouts(self) -> tuple[Layout, ...]:
        found: dict[bytes, Layout] = {}
        for path in self._begin():
            layout = self._read_layout(path)
            if layout is not None:
                found.setdefault(layout.schema.serialize().to_pybytes(), layout)
        return tuple(found.values())

    def close(self) -> None:
        self._is_closed = True

    @abstractmethod
    def _read(self, path: Path) -> Iterator[tuple[Layout, pa.RecordBatch]]:
        """The batches of a part; what its writer did not finish goes to `_note_torn`."""

    @abstractmethod
    def _read_layout(self, path: Path) -> Layout | None:
        """The layout of a part; None if its writer did not get that far."""

    def _read_ids(self, path: Path) -> Iterator[pa.Array]:
        """The columns `trajectory_id` of a part."""
        return (batch.column("trajectory_id") for _, batch in self._read(path))

    def _begin(self) -> list[Path]:
        """The parts that are there now, and a fresh report."""
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport(unfinished=sorted(map(str, self._directory.glob(f"part-*{self._suffix}.tmp"))))
        return sorted(self._directory.glob(f"part-*{self._suffix}"))

    def _note_torn(self, path: Path, num_bytes: int) -> None:
        self.report.torn[str(path)] = num_bytes
        _log.warning(
            "%s: the last %d bytes were never flushed (its writer was killed or is still writing); they are left out",
            path,
            num_bytes,
        )

    def _split(self, path: Path, batch: pa.RecordBatch, layout: Layout) -> Sequence[Trajectory]:
        try:
            return from_batch(batch, layout)
        except DecodeError as error:
            raise DecodeError(f"{path} is damaged: {error}") from error
