"""The two queues between acting and learning: trajectories one way, policies the other.

- `TrajectoryQueue` is bounded: whoever puts into a full one waits, nothing is dropped. An item leaves it when its taker says
  that it is done with it.
- `PolicyQueue` holds one item: the newest wins.

Both are for threads of one process. Closing a trajectory queue wakes everybody who waits on it, with the error that closed
it, so that a crash on one side never leaves the other one waiting. Not their job: what travels in them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from relayrl.errors import ConfigError, QueueClosedError, QueueTimeoutError

T = TypeVar("T")


class TrajectoryQueue(Generic[T]):
    """At most `capacity` items that are waiting or being worked on."""

    def __init__(self, capacity: int = 1) -> None:
        if capacity < 1:
            raise ConfigError(f"a trajectory queue needs room for one item, not {capacity}")
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._num_unfinished = 0
        self._is_closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, item: T, timeout_s: float | None = None) -> None:
        """Append; waits while the queue is full, at most `timeout_s`."""
        with self._changed:
            self._wait_until(lambda: self._num_unfinished < self.capacity, timeout_s, "room in the trajectory queue")
            self._items.append(item)
            self._num_unfinished += 1
            self._changed.notify_all()

    def get(self, timeout_s: float = 0.0) -> T | None:
        """The oldest item, or None where none came within `timeout_s`. Its slot stays taken until `done`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._items:
                self._raise_if_closed()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return self._items.popleft()

    def done(self) -> None:
        """Say that the oldest item taken is learned from: its slot is free again."""
        with self._changed:
            self._num_unfinished -= 1
            self._changed.notify_all()

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every item was taken and is done."""
        with self._changed:
            self._wait_until(lambda: self._num_unfinished == 0, timeout_s, "the trajectory queue to be worked off")

    def close(self, error: BaseException | None = None) -> None:
        """No more items; everybody who waits gets `error`, or `QueueClosedError`."""
        with self._changed:
            self._is_closed = True
            self._error = self._error or error
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._raise_if_closed()
            if condition():
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise QueueTimeoutError(f"waited {timeout_s} s for {what}; the other side is slower than expected")
            self._changed.wait(left)

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise QueueClosedError("the trajectory queue is closed; make a new one to go on")


class PolicyQueue(Generic[T]):
    """One slot: putting replaces what nobody has taken."""

    def __init__(self) -> None:
        self._item: T | None = None
        self._lock = threading.Lock()

    def put(self, item: T) -> None:
        """Publish."""
        with self._lock:
            self._item = item

    def take(self) -> T | None:
        """The newest item, if there is one that was not taken before."""
        with self._lock:
            item, self._item = self._item, None
            return item
