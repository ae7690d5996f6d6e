"""The sinks of routers: opened from URLs, or the program's own.

A program's own sink is shared by all routers and stays open when they end; its owner closes it, after `shutdown()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from relayrl.config.settings import parse_settings
from relayrl.data.columns import Trajectory
from relayrl.runtime.agents.client_config import SinkConfig


class TrajectorySink(Protocol):
    """What the runtime needs of a sink; `relayrl.sinks.contract` says what it promises."""

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Take trajectories; durable after the next `flush`."""

    def flush(self) -> None:
        """Return when everything taken is durable."""

    def close(self) -> None:
        """Flush and let go of everything."""


class DiscardingSink:
    """For agents that only act: keeps nothing."""

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Keep none of them."""

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is open."""


class BorrowedSink:
    """A sink of the program's own: flushed, never closed."""

    def __init__(self, sink: TrajectorySink) -> None:
        self._sink = sink

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        self._sink.write(trajectories)

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self._sink.flush()


class Both:
    """A sink and a server: trajectories are durable in the sink before the server is sent any."""

    def __init__(self, sink: TrajectorySink, server: TrajectorySink) -> None:
        self._sink, self._server = sink, server
        self._only_in_sink: set[UUID] = set()  # of a write that the server had no room for, and that comes again

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        new = [each for each in trajectories if each.trajectory_id not in self._only_in_sink]
        if new:
            self._sink.write(new)
        ids = {each.trajectory_id for each in trajectories}
        self._only_in_sink |= ids
        self._server.write(trajectories)
        self._only_in_sink -= ids

    def flush(self) -> None:
        self._sink.flush()
        self._server.flush()

    def close(self) -> None:
        try:
            self._sink.close()
        finally:
            self._server.close()


class SinkOpener:
    """Gives each router its sinks."""

    def __init__(self, given: TrajectorySink | None, server: TrajectorySink | None = None) -> None:
        """`server` is where trajectories go besides the sinks."""
        self._given, self._server = given, server

    @property
    def is_given(self) -> bool:
        """Whether the program gave a sink of its own, or a server."""
        return self._given is not None or self._server is not None

    def open(self, config: SinkConfig) -> TrajectorySink:
        """A sink for one router. Whatever is wrong with the URLs is raised now."""
        if self._given is not None:
            given = BorrowedSink(self._given)
            return given if self._server is None else Both(given, BorrowedSink(self._server))
        if not config.urls:
            return DiscardingSink() if self._server is None else BorrowedSink(self._server)
        from relayrl.sinks.contract import open_sink  # here, because it loads pyarrow
        from relayrl.sinks.fan_out import FanOutSink
        from relayrl.sinks.sink_settings import SinkSettings

        settings = parse_settings(SinkSettings, config.settings)
        opened = [open_sink(url, settings) for url in config.urls]
        sink = opened[0] if len(opened) == 1 else FanOutSink(opened)
        return sink if self._server is None else Both(sink, BorrowedSink(self._server))
