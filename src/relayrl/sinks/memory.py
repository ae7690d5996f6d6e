"""`memory:NAME`: trajectories kept in this process, for tests, notebooks and hand-over within a program.

A store lives as long as the process or until `forget`. What is kept are the trajectories themselves, not copies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.data.schema import Layout
from relayrl.errors import ConfigError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.checked_trajectory import CheckedTrajectory
from relayrl.sinks.contract import (
    ReadReport,
    SinkClosedError,
    SourceCount,
    TrajectorySink,
    TrajectorySource,
    rest_of,
)
from relayrl.sinks.sink_settings import SinkSettings

_lock = threading.Lock()
_stores: dict[str, dict[UUID, CheckedTrajectory]] = {}


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
            self._store = _stores.setdefault(rest_of(url, "NAME"), {})

    def _persist(self, records: Sequence[CheckedTrajectory]) -> None:
        with _lock:
            for record in records:
                self._store.setdefault(record.trajectory.trajectory_id, record)

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
        return (record.trajectory for record in self._records())

    def count(self) -> SourceCount:
        records = self._records()
        return SourceCount(len(records), sum(record.num_steps for record in records))

    def layouts(self) -> tuple[Layout, ...]:
        found: dict[bytes, Layout] = {}
        for record in self._records():
            found.setdefault(record.layout.schema.serialize().to_pybytes(), record.layout)
        return tuple(found.values())

    def close(self) -> None:
        self._is_closed = True

    def _records(self) -> list[CheckedTrajectory]:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()
        with _lock:
            return list(self._store.values())
