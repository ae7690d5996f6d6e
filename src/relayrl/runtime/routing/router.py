"""A router: a thread that carries trajectories from its buffer to its sink, which it opens.

A program's own sink is shared by all routers and stays open when they end; its owner closes it, after `shutdown()`.

Invariants:

- A trajectory leaves the buffer only when the sink has made it durable (`flush` returned), or when the sink refused it for
  good: then it is kept in `rejected` and logged. Failures are retried with growing delays for as long as the router lives.
- It flushes every `flush_interval_s`, and at once when somebody waits.
- `stop` ends the thread by a deadline and gives back whatever did not get through.

Not its job: which actors are its own (`router_dispatcher`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from relayrl.config.settings import parse_settings
from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, RelayRLError, SinkFailedError
from relayrl.runtime.agents.client_config import RouterBufferSettings, SinkConfig
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from relayrl.runtime.routing.trajectory_buffer import Entry, TrajectoryBuffer

_log = logging.getLogger("relayrl.runtime.routing.router")
MAX_RETRY_DELAY_S = 5.0
MAX_REJECTED_KEPT = 1000


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


class Router:
    """Owns a buffer, a sink and a thread."""

    def __init__(
        self,
        number: int,
        opener: SinkOpener,
        sink_config: SinkConfig,
        bounds: RouterBufferSettings,
        metrics: RuntimeMetrics,
    ) -> None:
        self.number, self.buffer = number, TrajectoryBuffer(bounds)
        self.rejected: list[tuple[Entry, str]] = []
        self._opener, self._config, self._metrics = opener, sink_config, metrics
        self._sink: TrajectorySink = opener.open(sink_config)
        self._next_config: SinkConfig | None = None
        self._unflushed: list[Entry] = []
        self._stop_at_s: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"relayrl-router-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reconfigure(self, config: SinkConfig) -> None:
        """Go over to other sinks once what was written to the present ones is durable."""
        self._next_config = config
        self.buffer.hurry()

    def begin_stop(self, deadline_s: float) -> None:
        """Begin to end; `stop` waits for it."""
        self._stop_at_s = deadline_s
        self._stopped.set()
        self.buffer.hurry()

    def stop(self, deadline_s: float) -> list[Entry]:
        """Write and flush what is there until `time.monotonic()` is `deadline_s`; gives what did not become durable."""
        self.begin_stop(deadline_s)
        self._thread.join(max(0.0, deadline_s - time.monotonic()) + 1.0)
        if self._thread.is_alive():
            _log.error("router hangs in its sink", extra={"router": self.number})
        return [*self.buffer.unsettled(), *self.buffer.close()]

    def _run(self) -> None:
        flush_at_s = 0.0
        try:
            while not self._out_of_time():
                is_stopping = self._is_stopping  # looked at before the buffer: everything was put there before the stop
                wait_s = max(0.0, flush_at_s - time.monotonic()) if self._unflushed else self._config.flush_interval_s
                entries = self.buffer.take(self._config.max_write_trajectories, 0.0 if is_stopping else wait_s)
                hurried = self.buffer.take_hurry()
                if entries and not self._unflushed:
                    flush_at_s = time.monotonic() + self._config.flush_interval_s
                self._write(entries)
                if hurried or is_stopping or time.monotonic() >= flush_at_s:
                    self._flush()
                    self._switch_sinks()
                if hurried and entries:  # more of what somebody waits for may have been left behind
                    self.buffer.hurry()
                if is_stopping and not entries:
                    break
        finally:
            self._close_sink()

    def _write(self, entries: list[Entry]) -> None:
        if not entries:
            return
        try:
            self._give(entries)
        except ConfigError:
            for entry in entries:
                self._write_alone(entry)

    def _write_alone(self, entry: Entry) -> None:
        try:
            self._give([entry])
        except ConfigError as error:
            self.buffer.settle([entry])
            self._metrics.rejected.inc()
            if len(self.rejected) < MAX_REJECTED_KEPT:
                self.rejected.append((entry, str(error)))
            _log.error(
                "sink refused a trajectory",
                extra={"router": self.number, "trajectory_id": entry.trajectory.trajectory_id, "why": str(error)},
            )

    def _give(self, entries: list[Entry]) -> None:
        if self._persevere(lambda: self._sink.write([entry.trajectory for entry in entries])):
            self._unflushed += entries

    def _flush(self) -> None:
        if not self._unflushed or not self._persevere(self._sink.flush):
            return
        durable, self._unflushed = self._unflushed, []
        self._metrics.durable.inc(len(durable))
        self.buffer.settle(durable)

    def _persevere(self, work: Callable[[], None]) -> bool:
        """Try until it works; False if the router has to end before. What the sink refuses for good is raised."""
        delay_s = self._config.retry_delay_s
        while True:
            start_s = time.perf_counter()
            try:
                _in_sink(work)
                self._metrics.sink_seconds.observe(time.perf_counter() - start_s)
                return True
            except SinkFailedError as error:
                self._metrics.sink_failures.inc()
                _log.warning(
                    "sink failed, will try again",
                    extra={"router": self.number, "why": str(error), "retry_in_s": delay_s},
                )
            if self._out_of_time():
                return False
            if self._stop_at_s is None:
                self._stopped.wait(delay_s)
            else:
                time.sleep(max(0.0, min(delay_s, self._stop_at_s - time.monotonic())))
            delay_s = min(2.0 * delay_s, MAX_RETRY_DELAY_S)

    @property
    def _is_stopping(self) -> bool:
        return self._stop_at_s is not None

    def _out_of_time(self) -> bool:
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s

    def _switch_sinks(self) -> None:
        if self._next_config is None or self._unflushed:
            return
        config, self._next_config = self._next_config, None
        if config.urls != self._config.urls or config.settings != self._config.settings:
            try:
                new = self._opener.open(config)
            except RelayRLError as error:
                _log.error("cannot open the new sinks, the old ones stay", extra={"why": str(error)})
                return
            self._close_sink()
            self._sink = new
        self._config = config

    def _close_sink(self) -> None:
        try:
            _in_sink(self._sink.close)
        except (SinkFailedError, ConfigError) as error:
            _log.error("sink failed to close", extra={"router": self.number, "why": str(error)})


def _in_sink(work: Callable[[], None]) -> None:
    try:
        work()
    except ConfigError:
        raise
    except Exception as error:  # a program's own sink may raise anything, and must not end the router
        raise SinkFailedError(f"{type(error).__name__}: {error}") from error
