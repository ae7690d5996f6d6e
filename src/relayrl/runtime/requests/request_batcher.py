"""Many threads, one forward pass: the first to come acts at once, and those that come meanwhile are served together.

A caller that finds nobody at work serves itself in its own thread: no queue, no hand-over. Whoever comes while a pass runs
waits; when it ends, the first of them serves all that wait (up to `max_rows` rows) in one pass. So a request waits for at
most the pass that was running when it came and those of the full batches before it, and no thread ever idles to collect more.

Invariants: at most one thread serves at a time; every request that was submitted is served once, or raises; leadership is
handed on even when serving fails.

Not its job: what serving means; it is given a function of a list of requests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from relayrl.errors import InferenceError
from relayrl.runtime.agents.client_config import BatchingSettings


class Batchable(Protocol):
    """A request: its size, and where its failure is kept."""

    num_rows: int
    error: BaseException | None


R = TypeVar("R", bound=Batchable)


class _Waiting(Generic[R]):
    """Requests of one caller that waits for them."""

    __slots__ = ("leads", "requests", "wake")

    def __init__(self, requests: Sequence[R]) -> None:
        self.requests, self.leads = requests, False
        self.wake = threading.Lock()
        self.wake.acquire()


class RequestBatcher(Generic[R]):
    """Runs `serve(requests)` for requests of any thread, one call at a time."""

    def __init__(self, serve: Callable[[Sequence[R]], None], settings: BatchingSettings) -> None:
        self._serve, self.settings = serve, settings
        self._mutex = threading.Lock()
        self._leading = threading.Lock()  # held by whoever serves, and handed over while it is held
        self._queue: deque[_Waiting[R]] = deque()

    def try_to_lead(self) -> bool:
        """Whether nobody serves or waits; the caller then serves itself, and calls `hand_on` whatever happens."""
        return not self._queue and self._leading.acquire(False)

    def hand_on(self) -> None:
        """The leader is done; if anybody waits, the first of them leads."""
        self._leading.release()
        if self._queue:
            with self._mutex:
                self._nominate()

    def run(self, requests: Sequence[R]) -> None:
        """Serve the requests, alone or with others; each then has its result or its `error`."""
        if self.try_to_lead():
            try:
                self._serve(requests)
            finally:
                self.hand_on()
        else:
            self.wait_for(requests)

    def wait_for(self, requests: Sequence[R]) -> None:
        """Be served by somebody else, or lead when it is one's turn."""
        waiting = _Waiting(requests)
        with self._mutex:
            self._queue.append(waiting)
            self._nominate()  # the leader may have looked at the queue, and left, just before
        self._wait(waiting)

    def _nominate(self) -> None:
        """Let the first who waits lead, unless somebody does. The caller holds the mutex."""
        if self._queue and self._leading.acquire(False):
            heir = self._queue[0]
            heir.leads = True
            heir.wake.release()

    def _wait(self, waiting: _Waiting[R]) -> None:
        for _ in range(2):  # once to be served or to lead; once more if time ran out while somebody was serving it
            woken = waiting.wake.acquire(timeout=self.settings.request_timeout_s)
            with self._mutex:
                if waiting.leads:
                    batch = self._next_batch()
                elif woken:
                    return
                elif waiting in self._queue:
                    self._queue.remove(waiting)
                    break
                else:
                    continue
            self._lead(batch, waiting)
            return
        raise InferenceError(
            f"no forward pass within {self.settings.request_timeout_s} s; the one before it takes too long, or hangs"
        )

    def _lead(self, batch: list[_Waiting[R]], own: _Waiting[R]) -> None:
        requests = [request for waiting in batch for request in waiting.requests]
        try:
            self._serve(requests)
        except BaseException as error:  # for example an interrupt: the others must not wait for it
            for waiting in batch:
                if waiting is not own:
                    _fail(waiting, error)
            raise
        finally:
            for waiting in batch:
                if waiting is not own:
                    waiting.wake.release()
            self.hand_on()

    def _next_batch(self) -> list[_Waiting[R]]:
        """Whoever waits, in order, as many as fit into one pass; at least one."""
        batch: list[_Waiting[R]] = []
        num_rows = 0
        while self._queue:
            rows = sum(request.num_rows for request in self._queue[0].requests)
            if batch and num_rows + rows > self.settings.max_rows:
                break
            batch.append(self._queue.popleft())
            num_rows += rows
        return batch


def _fail(waiting: _Waiting[R], error: BaseException) -> None:
    for request in waiting.requests:
        request.error = InferenceError(f"the thread that served this request was interrupted: {error!r}")
