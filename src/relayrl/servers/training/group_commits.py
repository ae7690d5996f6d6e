"""Makes messages durable in a thread of its own: while one fsync runs, the next messages are received and checked.

All that waits when a commit ends is made durable by the next one, so the journal's latency is paid by a group and not by a
message. What waits is bounded; whoever puts more waits. A journal that cannot be written is tried again until it can. What its
sink refuses for good becomes an entry without trajectories.

Not its job: what messages hold, and acknowledging them (`ingest`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from relayrl.errors import ConfigError, SinkError
from relayrl.servers.training.journal import Entry, Journal
from relayrl.servers.training.training_metrics import TrainingMetrics

_log = logging.getLogger("relayrl.servers.training.group_commits")
_MAX_WAITING_BYTES = 64 << 20
_RETRY_S = 0.5


class Committable(Protocol):
    """What is put: an entry, and the length of its message."""

    entry: Entry
    num_bytes: int

    def refuse(self, error: Exception) -> None:
        """Leave the entry without trajectories."""


C = TypeVar("C", bound=Committable)


class GroupCommits(Generic[C]):
    """`on_durable` gets every group, in order, in the commits' thread."""

    def __init__(self, journal: Journal, metrics: TrainingMetrics, on_durable: Callable[[Sequence[C]], None]) -> None:
        self._journal, self._metrics, self._on_durable = journal, metrics, on_durable
        self._changed = threading.Condition()
        self._waiting: list[C] = []
        self._num_waiting_bytes = 0
        self._is_ending = False
        self._gives_up = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="relayrl-commits", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, taken: Sequence[C]) -> None:
        """Hand over; waits while too much waits already. Raises what ended the thread, if anything has."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting_bytes < _MAX_WAITING_BYTES or not self._thread.is_alive())
            if self._error is not None:
                raise self._error
            self._waiting += taken
            self._num_waiting_bytes += sum(each.num_bytes for each in taken)
            self._changed.notify_all()

    def give_up(self) -> None:
        """Do not try again what fails from now on: clients keep what is not acknowledged."""
        self._gives_up.set()

    def close(self) -> None:
        """Make durable what waits, and end the thread."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while group := self._next_group():
                if not self._commit(group):
                    break
                self._on_durable(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, the receiving thread raises it
            _log.exception("the journal's thread ended")
            self._error = error
        with self._changed:
            self._num_waiting_bytes = 0
            self._changed.notify_all()

    def _next_group(self) -> list[C]:
        """All that waits; empty when nothing more is to come."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._is_ending)
            group, self._waiting, self._num_waiting_bytes = self._waiting, [], 0
            self._changed.notify_all()
            return group

    def _commit(self, group: Sequence[C]) -> bool:
        """Whether it became durable; it is tried until it does, or somebody gives up."""
        started_s = time.perf_counter()
        left = deque(group)
        while True:
            try:
                while left:
                    self._take(left[0])
                    left.popleft()
                self._journal.commit([each.entry for each in group])
                break
            except (SinkError, OSError) as error:
                self._metrics.journal_failures.inc()
                _log.error("the journal cannot be written, nothing is acknowledged: %s", error)
                if self._gives_up.wait(_RETRY_S):
                    return False
        self._metrics.journal_seconds.observe(time.perf_counter() - started_s)
        return True

    def _take(self, one: C) -> None:
        try:
            self._journal.take(one.entry)
        except ConfigError as error:
            one.refuse(error)
