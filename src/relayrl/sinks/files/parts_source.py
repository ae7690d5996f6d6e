"""A source that reads all part files of a directory as one, in the order in which they were begun.

A piece that differs from its checksum is a `DecodeError`, as is a closed part that has lost its end. A part without a file of
checksums was recorded by an older RelayRL and is unchecked; a checksum without a name is a CRC-32 of the whole piece, as files
from before `grid:` have.

Not its job: what is in a part and torn ends (`arrow_files`, `parquet_files`, `csv_files`), or writing, naming and summing parts
(`parts_sink`).
"""

from __future__ import annotations

import logging
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from relayrl.data.arrow.arrow_reading import count_rows, from_batch
from relayrl.data.arrow.schema import Layout
from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, DecodeError, SinkClosedError
from relayrl.sinks.contract import ReadReport, SourceCount, TrajectorySource, rest_of
from relayrl.sinks.files.parts_sink import CLOSED, GRID, SUMS_SUFFIX, GridSum, sums_line

SUFFIXES = {".arrows": "arrow", ".parquet": "parquet", ".csv": "csv"}
_log = logging.getLogger(__name__)


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
        return self._pass(lambda _: True)

    def _pass(self, may_hold: Callable[[pa.RecordBatch], bool]) -> Iterator[Trajectory]:
        """Every trajectory of the batches that may hold what is asked for."""
        seen: set[UUID] = set()
        paths, left_out = self._begin(), self._left_out()
        for path in paths:
            num_before, num_checked_bytes = len(seen), check_sums(path)
            for layout, batch in self._read(path):
                if not may_hold(batch):
                    continue
                for trajectory in self._split(path, batch, layout):
                    if trajectory.trajectory_id in seen:
                        self.report.num_duplicates += 1
                        continue
                    seen.add(trajectory.trajectory_id)
                    if trajectory.trajectory_id in left_out:
                        self.report.num_abandoned += 1
                        continue
                    yield trajectory
            self._note_unchecked(path, num_checked_bytes, len(seen) - num_before)

    def of_envs(self, env_ids: Collection[UUID], first_episode: int) -> Iterator[Trajectory]:
        names = set(map(str, env_ids))

        def may_hold(batch: pa.RecordBatch) -> bool:
            if batch.num_rows == 0 or pc.max(batch.column("episode")).as_py() < first_episode:
                return False
            return not names.isdisjoint(batch.column("env_id").dictionary.to_pylist())

        found = self._pass(may_hold)
        return (each for each in found if each.env_id in env_ids and each.episode >= first_episode)

    def abandoned(self) -> frozenset[UUID]:
        paths = list(self._directory.glob("abandoned-*.txt"))
        for path in paths:
            check_sums(path)
        try:
            return frozenset(UUID(line) for path in paths for line in path.read_text().split())
        except ValueError as error:
            raise DecodeError(f"a list of abandoned trajectories in {self._directory} is damaged: {error}") from error

    def _left_out(self) -> frozenset[UUID]:
        return frozenset() if self.with_abandoned else self.abandoned()

    def count(self) -> SourceCount:
        lengths: dict[UUID, int] = {}
        paths, left_out = self._begin(), self._left_out()
        for path in paths:
            num_before, num_checked_bytes = len(lengths), check_sums(path)
            for ids in self._read_ids(path):
                for trajectory_id, num_steps in count_rows(ids):
                    self.report.num_duplicates += trajectory_id in lengths
                    lengths.setdefault(trajectory_id, num_steps)
            self._note_unchecked(path, num_checked_bytes, len(lengths) - num_before)
        abandoned = left_out & lengths.keys()
        self.report.num_abandoned = len(abandoned)
        num_steps = sum(lengths.values()) - sum(lengths[each] for each in abandoned)
        return SourceCount(len(lengths) - len(abandoned), num_steps)

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

    def _note_unchecked(self, path: Path, num_checked_bytes: int, num_trajectories: int) -> None:
        if path.stat().st_size - self.report.torn.get(str(path), 0) > num_checked_bytes:
            self.report.num_unchecked += num_trajectories

    def _split(self, path: Path, batch: pa.RecordBatch, layout: Layout) -> Sequence[Trajectory]:
        try:
            batch.validate()
            return from_batch(batch, layout) if batch.num_rows else ()
        except (DecodeError, pa.ArrowException) as error:
            raise DecodeError(f"{path} is damaged: {error}") from error


class _Piece(NamedTuple):
    name: str
    end: int
    checksum: str
    is_last: bool

    def is_of(self, data: memoryview) -> bool:
        """Whether the piece has these bytes."""
        if not self.checksum.startswith(GRID):
            return f"{zlib.crc32(data):08x}" == self.checksum
        found = GridSum()
        found.add(data)
        return f"{GRID}{found.take():08x}" == self.checksum


def check_sums(path: Path, *, first_piece_only: bool = False) -> int:
    """How many bytes of a file are what was written; 0 if it has no checksums, `DecodeError` if some differ."""
    pieces = [piece for piece in _pieces(path.with_suffix(SUMS_SUFFIX)) if piece.name == path.suffix]
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
        if sums_line(text) != line + b"\n":
            raise DecodeError(f"{path} is damaged in line {number}")
        name, end, checksum, state = text.split(" ")
        yield _Piece(name, int(end), checksum, state == CLOSED)
