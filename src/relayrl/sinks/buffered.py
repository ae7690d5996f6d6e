"""The part of a sink that is the same for all that store: check, hold back, write in bulk, be retried.

A subclass says how records and marks become durable (`_persist`, `_mark`) and what to let go of (`_release`); it is never
called by two threads at once. Blocks leave the buffer when `_persist` has returned, so that whatever happens before is retried
as a whole.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Collection, Sequence
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.errors import SinkClosedError
from relayrl.sinks.contract import TrajectorySink
from relayrl.sinks.sink_settings import SinkSettings
from relayrl.sinks.value_ranges import checked_blocks


class BufferedSink(TrajectorySink):
    """Holds trajectories until the buffer is full, its oldest is old, or somebody flushes."""

    def __init__(self, url: str, settings: SinkSettings) -> None:
        self._url = url
        self._settings = settings
        self._lock = threading.RLock()
        self._is_closed = False
        self._held: list[TrajectoryBlock] = []
        self._held_ids: set[bytes] = set()
        self._num_held_bytes = 0
        self._held_since_s = 0.0

    @property
    def url(self) -> str:
        return self._url

    @property
    def num_held(self) -> int:
        """Trajectories that were taken and are not durable yet."""
        return len(self._held_ids)

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        with self._lock:
            self._require_open("write")
            blocks = self._check(trajectories)
            if self._is_due():
                self.flush()
            if not self._held:
                self._held_since_s = time.monotonic()
            for block in blocks:
                self._hold(block)

    def flush(self) -> None:
        with self._lock:
            self._require_open("flush")
            if not self._held:
                return
            self._persist(tuple(self._held))
            self._let_go()

    def abandon(self, trajectory_ids: Collection[UUID]) -> None:
        with self._lock:
            self._require_open("abandon")
            if trajectory_ids:
                self._mark(trajectory_ids)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                self.flush()
            finally:
                self._is_closed = True
                self._let_go()
                self._release()

    def _hold(self, block: TrajectoryBlock) -> None:
        new = block.without(self._held_ids)
        if new is not None:
            self._held.append(new)
            self._held_ids.update(new.headers.trajectory_ids)
            self._num_held_bytes += new.num_bytes

    def _let_go(self) -> None:
        self._held.clear()
        self._held_ids.clear()
        self._num_held_bytes = 0

    def _check(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryBlock]:
        """The trajectories as they will be stored; `ConfigError` if one cannot be."""
        return checked_blocks(trajectories)

    @abstractmethod
    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
        """Make blocks durable; `SinkWriteError` otherwise. May be called again with what a failed call had."""

    @abstractmethod
    def _mark(self, trajectory_ids: Collection[UUID]) -> None:
        """Mark trajectories as abandoned, durably; `SinkWriteError` otherwise."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of files and connections."""

    def _is_due(self) -> bool:
        if not self._held:
            return False
        age_s = time.monotonic() - self._held_since_s
        return self._num_held_bytes >= self._settings.max_buffered_bytes or age_s >= self._settings.max_buffered_s

    def _require_open(self, method: str) -> None:
        if self._is_closed:
            raise SinkClosedError(f"{method}() after close() on {self._url}; open a new sink to append")
