"""`memory:NAME`: trajectories kept in this process, for tests, notebooks and hand-over within a program.

A store lives as long as the process or until `forget`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from relayrl.data.arrow.schema import Layout
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, num_trajectories, without
from relayrl.errors import ConfigError, SinkClosedError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.contract import (
    ReadReport,
    SourceCount,
    TrajectorySink,
    TrajectorySource,
    rest_of,
)
from relayrl.sinks.sink_settings import SinkSettings


@dataclass
class _Store:
    """What was flushed, each trajectory once."""

    blocks: list[TrajectoryBlock] = field(default_factory=list)
    trajectory_ids: set[bytes] = field(default_factory=set)
    abandoned: set[UUID] = field(default_factory=set)


_lock = threading.Lock()
_stores: dict[str, _Store] = {}


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink into the store of that name, which is made if it is not there."""
    return MemorySink(url, settings)


def open_source(url: str) -> TrajectorySource:
    """The store of that name."""
    return MemorySource(url)


def forget(name: str) -> None:
    """Drop a store and what it holds; a name that does not exist is fine."""
    with _lock:
        _stores.pop(name, None)


class MemorySink(BufferedSink):
    """Flushed is what sources see."""

    def __init__(self, url: str, settings: SinkSettings) -> None:
        super().__init__(url, settings)
        with _lock:
            self._store = _stores.setdefault(rest_of(url, "NAME"), _Store())

    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
        with _lock:
            for block in without(blocks, self._store.trajectory_ids):
                self._store.blocks.append(block)
                self._store.trajectory_ids.update(block.headers.trajectory_ids)

    def _mark(self, trajectory_ids: Collection[UUID]) -> None:
        with _lock:
            self._store.abandoned.update(trajectory_ids)

    def _release(self) -> None:
        """The store stays."""


class MemorySource(TrajectorySource):
    """What the store holds when a pass begins."""

    def __init__(self, url: str) -> None:
        name = rest_of(url, "NAME")
        with _lock:
            if name not in _stores:
                raise ConfigError(f"{url} holds nothing: no sink of this process was opened there")
            self._store = _stores[name]
        self._url = url
        self._is_closed = False
        self.report = ReadReport()

    @property
    def url(self) -> str:
        return self._url

    def __iter__(self) -> Iterator[Trajectory]:
        return (trajectory for block in self._blocks() for trajectory in block.read_only())

    def abandoned(self) -> frozenset[UUID]:
        with _lock:
            return frozenset(self._store.abandoned)

    def count(self) -> SourceCount:
        blocks = self._blocks()
        return SourceCount(num_trajectories(blocks), sum(block.num_rows for block in blocks))

    def layouts(self) -> tuple[Layout, ...]:
        found: dict[bytes, Layout] = {}
        for block in self._blocks():
            found.setdefault(block.layout.schema.serialize().to_pybytes(), block.layout)
        return tuple(found.values())

    def close(self) -> None:
        self._is_closed = True

    def _blocks(self) -> list[TrajectoryBlock]:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()
        with _lock:
            blocks = list(self._store.blocks)
        if self.with_abandoned:
            return blocks
        kept = without(blocks, {each.bytes for each in self.abandoned()})
        self.report.num_abandoned = num_trajectories(blocks) - num_trajectories(kept)
        return kept
