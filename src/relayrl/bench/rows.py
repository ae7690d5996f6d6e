"""What a benchmark row is, and how two things are timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure beside its floor or peer, both from this run.

    `ratio` is oriented so that larger is better: ours / floor for rates, floor / ours for times.
    """

    name: str
    figure: float
    unit: str
    against: str
    against_figure: float | None
    ratio: float | None
    target: float

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None where there was nothing to compare with."""
        return None if self.ratio is None else self.ratio >= self.target

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def seconds_of(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(ours: Callable[[], float], other: Callable[[], float], repetitions: int = 5) -> tuple[float, float]:
    """Medians of two measurements taken in turn, so that a noisy machine is equally noisy for both."""
    pairs = [(ours(), other()) for _ in range(repetitions)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
