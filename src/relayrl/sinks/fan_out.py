"""One sink that is several: everything goes to all of them.

One that fails does not keep the others from their work; the error names all that failed. Repeating the call is harmless to
those that did not, because a sink stores a trajectory once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, SinkClosedError, SinkWriteError
from relayrl.sinks.contract import TrajectorySink


class FanOutSink(TrajectorySink):
    """Owns the sinks that it is given: closing it closes them."""

    def __init__(self, sinks: Sequence[TrajectorySink]) -> None:
        if not sinks:
            raise ConfigError("a fan-out needs at least one sink")
        self._sinks = tuple(sinks)
        self._is_closed = False

    @property
    def appends(self) -> bool:
        return all(sink.appends for sink in self._sinks)

    @property
    def url(self) -> str:
        return " + ".join(sink.url for sink in self._sinks)

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        self._require_open("write")
        self._in_all(lambda sink: sink.write(trajectories))

    def flush(self) -> None:
        self._require_open("flush")
        self._in_all(lambda sink: sink.flush())

    def abandon(self, trajectory_ids: Collection[UUID]) -> None:
        self._require_open("abandon")
        self._in_all(lambda sink: sink.abandon(trajectory_ids))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._in_all(lambda sink: sink.close())

    def _in_all(self, do: Callable[[TrajectorySink], None]) -> None:
        failures: list[SinkWriteError] = []
        for sink in self._sinks:
            try:
                do(sink)
            except SinkWriteError as error:
                failures.append(error)
        if failures:
            worst = max(error.num_trajectories for error in failures)
            raise SinkWriteError("; ".join(map(str, failures)), worst) from failures[0]

    def _require_open(self, method: str) -> None:
        if self._is_closed:
            raise SinkClosedError(f"{method}() after close() on {self.url}; open a new sink to append")
