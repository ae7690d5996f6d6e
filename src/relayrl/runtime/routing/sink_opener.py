"""The sinks of routers: opened from URLs, or the program's own.

A program's own sink is shared by all routers and stays open when they end; its owner closes it, after `shutdown()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class SinkOpener:
    """Gives each router its sinks."""

    def __init__(self, given: TrajectorySink | None) -> None:
        self._given = given

    @property
    def is_given(self) -> bool:
        """Whether the program gave a sink of its own."""
        return self._given is not None

    def open(self, config: SinkConfig) -> TrajectorySink:
        """A sink for one router. Whatever is wrong with the URLs is raised now."""
        if self._given is not None:
            return BorrowedSink(self._given)
        if not config.urls:
            return DiscardingSink()
        from relayrl.sinks.contract import open_sink  # here, because it loads pyarrow
        from relayrl.sinks.fan_out import FanOutSink
        from relayrl.sinks.sink_settings import SinkSettings

        settings = parse_settings(SinkSettings, config.settings)
        opened = [open_sink(url, settings) for url in config.urls]
        return opened[0] if len(opened) == 1 else FanOutSink(opened)
