"""Counters, gauges and latency histograms: cheap to write, read as one snapshot by exporters.

    metrics = MetricRegistry()
    requests = metrics.counter("runtime/requests_total", "calls of request_action")
    requests.inc()

Every instrument is one number (or one row of buckets) behind a lock of its own, so that no increment is ever lost and none
costs more than a fraction of a microsecond. Names are `area/name_unit`; exporters spell them in their own way.

Not its job: labels, sending anything anywhere (`prometheus_exporter`, `otel_exporter`), or statistics of training.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from relayrl.errors import ConfigError, UnknownNameError

LATENCY_BOUNDS_S = (
    *(base * 10.0**power for power in range(-6, 1) for base in (1.0, 2.5, 5.0)),
    10.0,
)
"""Upper bounds of latency buckets in seconds: 1 µs to 10 s, three to a decade."""


class MetricKind(Enum):
    """What a metric's number means."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Counts of values at most each bound, not cumulative; the last one counts what is larger than every bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Upper bound of the bucket that holds quantile `q`; 0 without values, infinity beyond the last bound."""
        wanted, seen = q * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0


@dataclass(frozen=True, slots=True)
class MetricSnapshot:
    """One metric at one moment."""

    name: str
    kind: MetricKind
    description: str
    value: float | HistogramSnapshot


class Counter:
    """A number that only grows."""

    __slots__ = ("_lock", "_value", "description", "name")
    kind = MetricKind.COUNTER

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description
        self._lock, self._value = threading.Lock(), 0

    def inc(self, amount: int = 1) -> None:
        """Add `amount`, which is not negative."""
        with self._lock:
            self._value += amount

    @property
    def value(self) -> int:
        return self._value

    def read(self) -> float:
        return self._value


class Gauge:
    """A number that goes up and down: set, or read from a function when it is asked for."""

    __slots__ = ("_function", "_value", "description", "name")
    kind = MetricKind.GAUGE

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description
        self._value = 0.0
        self._function: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self._value = value

    def follow(self, function: Callable[[], float] | None) -> None:
        """Read the value from `function` from now on; None goes back to the value that was set."""
        self._function = function

    @property
    def value(self) -> float:
        return self.read()

    def read(self) -> float:
        return self._value if self._function is None else float(self._function())


class Histogram:
    """How many values fell between which bounds."""

    __slots__ = ("_counts", "_lock", "_total", "bounds", "description", "name")
    kind = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, bounds: Sequence[float]) -> None:
        self.name, self.description, self.bounds = name, description, tuple(bounds)
        if list(self.bounds) != sorted(set(self.bounds)) or not self.bounds:
            raise ConfigError(f"histogram {name!r}: bounds must grow strictly, not {self.bounds}")
        self._lock, self._counts, self._total = threading.Lock(), [0] * (len(self.bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        bucket = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._total += value

    def read(self) -> HistogramSnapshot:
        with self._lock:
            return HistogramSnapshot(self.bounds, tuple(self._counts), self._total)


Instrument = Counter | Gauge | Histogram
I = TypeVar("I", Counter, Gauge, Histogram)  # noqa: E741 - the usual name of the thing


class MetricRegistry:
    """All metrics of one component by name; asking for a name again gives the same instrument."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instruments: dict[str, Instrument] = {}

    def counter(self, name: str, description: str) -> Counter:
        return self._add(Counter(name, description))

    def gauge(self, name: str, description: str) -> Gauge:
        return self._add(Gauge(name, description))

    def histogram(self, name: str, description: str, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> Histogram:
        return self._add(Histogram(name, description, bounds))

    def __getitem__(self, name: str) -> Instrument:
        if name not in self._instruments:
            raise UnknownNameError("metric", name, self._instruments)
        return self._instruments[name]

    def snapshot(self) -> list[MetricSnapshot]:
        """Every metric now, in the order of names."""
        with self._lock:
            instruments = sorted(self._instruments.values(), key=lambda each: each.name)
        return [MetricSnapshot(each.name, each.kind, each.description, each.read()) for each in instruments]

    def _add(self, instrument: I) -> I:
        with self._lock:
            present = self._instruments.setdefault(instrument.name, instrument)
        if not isinstance(present, type(instrument)):
            raise ConfigError(f"metric {instrument.name!r} is a {present.kind.value}, not a {instrument.kind.value}")
        return present
