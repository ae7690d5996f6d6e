"""Routers, threads that carry trajectories from their buffers to their sinks, and which of them carries which actor's.

Invariants:

- Every actor has one route; actors are spread evenly over routers, also after scaling. There is at least one router while the
  dispatcher is open.
- `put` never loses a trajectory: it goes to its actor's router, and if that router is being retired, to its heir. What the
  retired one had not written goes along.
- A trajectory leaves a buffer only when the sink has made it durable (`flush` returned), or when the sink refused it for
  good: then it is kept in `rejected` and logged. Failures are retried with growing delays for as long as the router lives.
- A router flushes every `flush_interval_s`, and at once when somebody waits. `stop` ends its thread by a deadline and gives
  back whatever did not get through.

Order: trajectories of one actor reach the sink in order as long as its router stays the same. Not its job: what waits and what
must wait (`trajectory_buffer`), sinks (`sink_opener`), or deciding how many routers there are (`scale_manager`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.errors import AgentStateError, BufferFullError, ConfigError, RelayRLError, SinkFailedError
from relayrl.runtime.agents.client_config import RouterBufferSettings, SinkConfig
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from relayrl.runtime.routing.learner_link import LearnerLink
from relayrl.runtime.routing.sink_opener import SinkOpener, TrajectorySink
from relayrl.runtime.routing.trajectory_buffer import Entry, Priority, TrajectoryBuffer

_log = logging.getLogger("relayrl.runtime.routing.router")
MAX_RETRY_DELAY_S = 5.0
MAX_REJECTED_KEPT = 1000
_POLL_S = 0.2


class RouterDispatcher:
    """The table of routes. All methods may be called from any thread."""

    def __init__(
        self,
        opener: SinkOpener,
        sink_config: SinkConfig,
        bounds: RouterBufferSettings,
        metrics: RuntimeMetrics,
        *,
        observe: Callable[[UUID, Trajectory], None] | None = None,
    ) -> None:
        """`observe` is called once with every trajectory that is handed over."""
        self._opener, self._sink_config, self._bounds, self._metrics = opener, sink_config, bounds, metrics
        self._observe = observe
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._routers: tuple[Router, ...] = ()
        self._retiring: tuple[Router, ...] = ()
        self._routes: dict[UUID, Router] = {}
        self._loads: dict[int, int] = {}
        self._rejected: list[tuple[Entry, str]] = []
        self.learner: LearnerLink | None = None
        """Gets every trajectory too."""

    @property
    def num_routers(self) -> int:
        return len(self._routers)

    @property
    def num_buffered(self) -> int:
        """Trajectories that are not durable yet."""
        return sum(len(router.buffer) for router in (*self._routers, *self._retiring))

    @property
    def num_buffered_bytes(self) -> int:
        return sum(router.buffer.num_bytes for router in (*self._routers, *self._retiring))

    def load(self) -> list[int]:
        """Actors of each router."""
        with self._lock:
            return [self._loads[router.number] for router in self._routers]

    def add_router(self) -> None:
        """One router more, which takes its share of the actors over."""
        router = Router(next(self._numbers), self._opener, self._sink_config, self._bounds, self._metrics)
        with self._lock:
            self._routers = (*self._routers, router)
            self._spread()
        router.start()

    def retire_router(self, timeout_s: float) -> None:
        """One router fewer; its actors and whatever it has not written go to the others."""
        with self._lock:
            *others, router = self._routers
            self._retiring = (*self._retiring, router)
            self._routers = tuple(others)
            self._spread()
            self._adopt(router.buffer.close())
        left = router.stop(time.monotonic() + timeout_s)
        with self._lock:
            self._adopt(left)
            self._rejected += router.rejected
            self._retiring = tuple(other for other in self._retiring if other is not router)

    def add_lane(self, lane_key: UUID) -> None:
        """A route for a new actor."""
        with self._lock:
            if lane_key in self._routes:
                return
            router = min(self._routers, key=lambda each: self._loads[each.number])
            self._routes[lane_key] = router
            self._loads[router.number] += 1

    def drop_lane(self, lane_key: UUID) -> None:
        """The actor is gone; what it left in a buffer stays there until it is durable."""
        with self._lock:
            router = self._routes.pop(lane_key, None)
            if router is not None:
                self._loads[router.number] -= 1

    def put(self, lane_key: UUID, trajectory: Trajectory, priority: Priority) -> None:
        """Hand a trajectory over."""
        self._metrics.trajectories.inc()
        self._metrics.steps.inc(len(trajectory))
        if self.learner is not None:
            self.learner.put(trajectory)
        if self._observe is not None:
            self._observe(lane_key, trajectory)
        router = self._routes.get(lane_key)
        if router is None or not router.buffer.put(lane_key, trajectory, priority):
            with self._lock:  # scaling is under way, or the actor is gone: routes are right again when it is our turn
                if not self._routers:
                    raise AgentStateError(
                        f"{len(trajectory)} steps of {trajectory.agent_id} came after the shutdown's deadline"
                    )
                router = self._routes.get(lane_key, self._routers[0])
                router.buffer.put(lane_key, trajectory, priority)

    def is_pressed(self) -> bool:
        """Whether any actor may have to wait; cheap."""
        return any([router.buffer.is_pressed for router in self._routers])  # noqa: C419 - a list is twice as fast here

    def has_room(self, lane_key: UUID) -> bool:
        """Whether the actor may go on."""
        router = self._routes.get(lane_key)
        return router is None or router.buffer.has_room(lane_key)

    def wait_for_room(self, lane_keys: Sequence[UUID], check: Callable[[], None]) -> None:
        """Wait until all these actors have room; `BufferFullError` after the push-back's deadline.

        `check` is called every now and then and may raise.
        """
        timeout_s = self._bounds.push_back_timeout_s
        deadline = time.monotonic() + timeout_s
        for key in lane_keys:
            while (router := self._routes.get(key)) is not None and not router.buffer.has_room(key):
                check()
                if time.monotonic() >= deadline:
                    raise BufferFullError(
                        f"{len(router.buffer)} trajectories wait for their sink, and there was no room within {timeout_s} s; "
                        "look at the log for failing sinks, add routers with scale_throughput(), or raise router_buffer"
                    )
                router.buffer.hurry()  # what is written and not flushed yet takes room as well
                router.buffer.wait_for_room(key, min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def wait_until_durable(self, lane_key: UUID | None, timeout_s: float) -> bool:
        """Flush, and wait until nothing of the actor (of anybody) is left in a buffer; False if that took too long."""
        deadline = time.monotonic() + timeout_s
        while True:
            routers = (*self._routers, *self._retiring)
            for router in routers:
                router.buffer.hurry()
            waited = [
                router.buffer.wait_until_settled(lane_key, max(0.0, min(_POLL_S, deadline - time.monotonic())))
                for router in routers
            ]
            with self._lock:
                unchanged = routers == (*self._routers, *self._retiring)
            if all(waited) and unchanged:
                return True
            if time.monotonic() >= deadline:
                return False

    def resize(self, bounds: RouterBufferSettings) -> None:
        """Other bounds for all buffers."""
        with self._lock:
            self._bounds = bounds
            for router in self._routers:
                router.buffer.resize(bounds)

    def reconfigure(self, config: SinkConfig) -> None:
        """Other sinks for all routers."""
        with self._lock:
            self._sink_config = config
            for router in self._routers:
                router.reconfigure(config)

    def stop(self, deadline_s: float) -> tuple[list[Entry], list[tuple[Entry, str]]]:
        """End all routers by `deadline_s` on the monotonic clock; gives what did not get through, and what was refused."""
        with self._lock:
            routers, self._routers = self._routers, ()
        for router in routers:
            router.begin_stop(deadline_s)
        left = [entry for router in routers for entry in router.stop(deadline_s)]
        return left, [*self._rejected, *(pair for router in routers for pair in router.rejected)]

    def _spread(self) -> None:
        """Move actors from routers that have too many, or are gone, to those that have too few."""
        routers = self._routers
        lanes_of: dict[int, list[UUID]] = {router.number: [] for router in routers}
        homeless: list[UUID] = []
        for key, router in self._routes.items():
            lanes_of.get(router.number, homeless).append(key)
        share, extra = divmod(len(self._routes), len(routers))
        ranked = sorted(routers, key=lambda router: -len(lanes_of[router.number]))
        self._loads = {router.number: share + (i < extra) for i, router in enumerate(ranked)}
        for router in routers:
            homeless += lanes_of[router.number][self._loads[router.number] :]
        for router in routers:
            for _ in range(self._loads[router.number] - len(lanes_of[router.number])):
                self._routes[homeless.pop()] = router

    def _adopt(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            router = self._routes.get(entry.lane_key, self._routers[0])
            router.buffer.put(entry.lane_key, entry.trajectory, Priority.FRAGMENT)


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
