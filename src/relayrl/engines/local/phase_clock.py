"""Where the time of a run goes: seconds per phase between two rows of statistics, and the memory it takes."""

from __future__ import annotations

import sys
import time


class PhaseClock:
    """Laps of one thread: the time since the last lap belongs to the phase that is named."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._steps: int | None = None

    def lap(self, phase: str) -> None:
        """The time since the last lap was spent on `phase`."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def start(self, num_env_steps: int) -> None:
        """Count steps from here."""
        self._steps, self._last = num_env_steps, time.perf_counter()

    def take(self, num_env_steps: int) -> dict[str, float]:
        """Metrics of the phases since the last call: rates of collecting and learning, and every phase's share."""
        steps, self._steps = num_env_steps - (self._steps or 0), num_env_steps
        seconds, self._seconds = self._seconds, {}
        total = max(sum(seconds.values()), 1e-9)
        rates = {f"time/{p}_steps_per_s": steps / max(seconds[p], 1e-9) for p in ("collect", "learn") if p in seconds}
        shares = {f"time/{phase}_share": value / total for phase, value in seconds.items()}
        return {"time/env_steps_per_s": steps / total, **rates, **shares}


def peak_memory_mib() -> float:
    """The most memory this process has held so far; NaN where the system does not tell."""
    try:
        import resource
    except ImportError:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
