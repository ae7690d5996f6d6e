"""What `relayrl serve training --watch` prints: one line of status every second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping

Status = Mapping[str, float]
_DROPS = {"stale": "server/dropped_stale_total", "invalid": "server/dropped_invalid_total"}


def status_line(before: Status, now: Status, seconds: float) -> str:
    """One line about a server from two readings of its metrics, `seconds` apart."""

    def rate(name: str) -> float:
        return (now[name] - before[name]) / seconds

    drops = ", ".join(f"{now[name]:.0f} {why}" for why, name in _DROPS.items())
    parts = (
        f"{now['server/actors']:.0f} actors",
        f"version {now['server/policy_version']:.0f}",
        f"{now['server/steps_total']:,.0f} steps ({rate('server/steps_total'):,.0f}/s)",
        f"{rate('server/updates_total'):.1f} updates/s",
        f"lag {now['server/policy_lag_versions']:.0f}",
        f"queue {now['server/queue_steps']:,.0f} steps",
        f"{rate('transport/bytes_total') / 1e6:.1f} MB/s",
        f"dropped {drops}",
    )
    return " · ".join(parts)


class Watch:
    """Prints the line until it is closed."""

    def __init__(self, status: Callable[[], Status], interval_s: float = 1.0) -> None:
        self._status, self._interval_s = status, interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relayrl-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(self._interval_s + 5.0)

    def _run(self) -> None:
        before, at_s = self._status(), time.monotonic()
        while not self._stopping.wait(self._interval_s):
            now, now_s = self._status(), time.monotonic()
            print(status_line(before, now, now_s - at_s), file=sys.stderr, flush=True)
            before, at_s = now, now_s
