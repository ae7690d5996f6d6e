"""When waiting requests become a batch: at the latency bound, when it is full, or when everybody has asked.

A client is waited for as long as its next request could still come within the latency bound of its last reply. So clients in
lock-step always share a batch, one that thinks for longer holds nobody up, and a single client never waits.

Requests of one `key` share a forward pass. Everything here is bookkeeping on a clock that the caller gives.

Not its job: what a batch does (`inference_server`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import Field

from relayrl.config.settings import Settings

T = TypeVar("T")


class BatchSettings(Settings):
    """How requests are put together."""

    max_latency_ms: float = Field(5.0, ge=0, le=10_000, description="Longest time a request waits for others, in ms.")
    max_batch: int = Field(4096, ge=1, description="Rows at which a batch is not waited for any longer.")
    max_queued_rows: int = Field(65_536, ge=1, description="Rows that may wait; further requests are refused as busy.")


@dataclass(slots=True)
class _Waiting(Generic[T]):
    client: bytes
    num_rows: int
    since_s: float
    item: T


class RequestBatches(Generic[T]):
    """Requests that wait, by key."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._bound_s = settings.max_latency_ms / 1000
        self._waiting: dict[Hashable, list[_Waiting[T]]] = {}
        self._asked: dict[bytes, int] = {}
        self._replied_s: dict[bytes, float] = {}
        self._served: list[bytes] = []
        self.num_rows = 0
        """Rows that wait."""

    def put(self, key: Hashable, client: bytes, num_rows: int, item: T, now_s: float) -> bool:
        """Let a request wait; False, and it does not, if too much waits already."""
        if self.num_rows and self.num_rows + num_rows > self._settings.max_queued_rows:
            return False
        self._waiting.setdefault(key, []).append(_Waiting(client, num_rows, now_s, item))
        self._asked[client] = self._asked.get(client, 0) + 1
        self._replied_s.pop(client, None)
        self.num_rows += num_rows
        return True

    def due(self, now_s: float) -> list[list[T]]:
        """Batches to be run now; their requests wait no longer."""
        if not self._waiting:
            return []
        everybody = not self._awaited(now_s)
        batches = []
        for key, waiting in list(self._waiting.items()):
            is_full = sum(each.num_rows for each in waiting) >= self._settings.max_batch
            if everybody or is_full or now_s >= waiting[0].since_s + self._bound_s:
                del self._waiting[key]
                batches += self._cut(waiting)
        return batches

    def replied(self, now_s: float) -> None:
        """All requests of the batches that were given were replied to; their clients may ask again."""
        for client in self._served:
            if client not in self._asked:
                self._replied_s[client] = now_s
        self._served.clear()

    def next_due_s(self, now_s: float) -> float | None:
        """When a batch is due at the latest if nobody asks before; None where nothing waits."""
        if not self._waiting:
            return None
        oldest_s = min(waiting[0].since_s for waiting in self._waiting.values()) + self._bound_s
        awaited_s = max((since + self._bound_s for since in self._awaited(now_s)), default=now_s)
        return min(oldest_s, awaited_s)

    def forget(self, client: bytes) -> None:
        """The client is gone; nobody waits for it."""
        self._replied_s.pop(client, None)

    def _awaited(self, now_s: float) -> list[float]:
        """When those clients were replied to that may still ask in time."""
        if not self._replied_s:
            return []
        late = [client for client, since_s in self._replied_s.items() if now_s >= since_s + self._bound_s]
        for client in late:
            del self._replied_s[client]
        return list(self._replied_s.values())

    def _cut(self, waiting: list[_Waiting[T]]) -> list[list[T]]:
        batches: list[list[T]] = [[]]
        num_rows = 0
        for each in waiting:
            if batches[-1] and num_rows + each.num_rows > self._settings.max_batch:
                batches.append([])
                num_rows = 0
            batches[-1].append(each.item)
            num_rows += each.num_rows
            self.num_rows -= each.num_rows
            left = self._asked[each.client] - 1
            if left:
                self._asked[each.client] = left
            else:
                del self._asked[each.client]
                self._served.append(each.client)
        return batches
