"""What it costs to count: a metric's increment and observation, each beside the bare work of it in the same run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from relayrl.bench.rows import Row, interleaved, seconds_of
from relayrl.observability.metrics import LATENCY_BOUNDS_S, MetricRegistry

CALLS = 50_000
REPETITIONS = 11
INCREMENT_TARGET, OBSERVATION_TARGET = 0.05, 0.1
"""Shares of the bare rates: 0.2 to 0.3 µs and about 0.5 µs on an idle core. The lock and the call make the difference."""


class _Box:
    """A number and a list of counts without a lock."""

    __slots__ = ("counts", "value")

    def __init__(self) -> None:
        self.value, self.counts = 0, [0] * (len(LATENCY_BOUNDS_S) + 1)


def metric_rows() -> list[Row]:
    """One row for counters, one for histograms."""
    registry, box = MetricRegistry(), _Box()
    counter, histogram = registry.counter("bench/things_total", ""), registry.histogram("bench/work_seconds", "")

    def increments() -> None:
        for _ in range(CALLS):
            counter.inc()

    def bare_increments() -> None:
        for _ in range(CALLS):
            box.value += 1

    def observations() -> None:
        for _ in range(CALLS):
            histogram.observe(0.01)

    def bare_observations() -> None:
        for _ in range(CALLS):
            box.counts[bisect_left(LATENCY_BOUNDS_S, 0.01)] += 1

    return [
        _row("increment of a metric", "increment of an attribute", increments, bare_increments, INCREMENT_TARGET),
        _row("observation of a metric", "bisect and list item", observations, bare_observations, OBSERVATION_TARGET),
    ]


def _row(name: str, against: str, ours: Callable[[], None], bare: Callable[[], None], target: float) -> Row:
    rate, floor = interleaved(lambda: CALLS / seconds_of(ours), lambda: CALLS / seconds_of(bare), REPETITIONS)
    return Row(name, rate, "calls/s", against, floor, rate / floor, target)
