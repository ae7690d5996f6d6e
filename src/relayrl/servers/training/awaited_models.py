"""Requests for a policy that is newer than the client's, kept until there is one or their time is over.

A client that asks ahead gets a policy when it is published, without having to hear of it and to ask first.

Not its job: answering them (`ingest`). Used from one thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from relayrl.transport.server_endpoint import Request

MAX_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Awaited:
    request: Request
    have: int
    end_s: float


class AwaitedModels:
    """One request for each client and group."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[bytes, str], _Awaited] = {}
        self._soonest_end_s = math.inf
        self._looked_at: Mapping[str, int] = {}  # versions that nobody here waits for

    def put(self, request: Request, group: str, have: int, end_s: float) -> Request | None:
        """Keep a request until `end_s`; gives the one that it takes the place of."""
        key = request.client, group
        before = self._waiting.pop(key, None)
        self._waiting[key] = _Awaited(request, have, end_s)
        self._soonest_end_s = min(self._soonest_end_s, end_s)
        if have < self._looked_at.get(group, have):
            self._looked_at = {}
        return None if before is None else before.request

    def take_due(self, versions: Mapping[str, int], now_s: float) -> list[Request]:
        """Those that have waited long enough, or for which there is a newer version; cheap while there are none."""
        if now_s < self._soonest_end_s and versions == self._looked_at:
            return []
        due = [key for key, each in self._waiting.items() if versions[key[1]] > each.have or now_s >= each.end_s]
        taken = [self._waiting.pop(key).request for key in due]
        self._soonest_end_s = min((each.end_s for each in self._waiting.values()), default=math.inf)
        self._looked_at = dict(versions)
        return taken

    def take_of(self, client: bytes) -> list[Request]:
        """Those of a client that has gone."""
        gone = [key for key in self._waiting if key[0] == client]
        return [self._waiting.pop(key).request for key in gone]
