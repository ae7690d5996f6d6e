"""What was measured, one JSON line per run, and the figures that follow from it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jobs import Job
from targets import ANY_TORCH, OURS, TORCH_PEERS, Target

FOREIGN_CORES = 0.3
"""Above this many cores kept busy by others, a run is marked as not alone on the machine."""


@dataclass(frozen=True)
class Measurement:
    """One run of one job. Runs of one `session` and `round` were made one after the other; ratios are taken within them."""

    session: str
    round: int
    peer: str
    work: str
    variant: str
    threads: int
    machine: str
    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        return self.session, self.round

    def figure(self, metric: str) -> float | None:
        """A measured number; None where the run has none."""
        value = self.figures.get(metric)
        return None if value is None else float(value)

    def is_of(self, job: Job) -> bool:
        return (self.peer, self.work, self.variant) == (job.peer, job.work, job.variant)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read(path: Path) -> list[Measurement]:
    """All measurements of a file; none where it does not exist."""
    if not path.exists():
        return []
    return [Measurement(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


def append(path: Path, measurement: Measurement) -> None:
    """Keep one more."""
    with path.open("a") as file:
        file.write(measurement.to_json() + "\n")


def threads_to_run(job: Job, known: Sequence[Measurement]) -> list[int]:
    """All thread counts of a job until each was tried on this work, then the best one."""
    rates: dict[int, list[float]] = {}
    for measurement in known:
        if measurement.is_of(job):
            rate = measurement.figure("env_steps_per_s")
            rates.setdefault(measurement.threads, []).append(rate or 0.0)
    if not set(job.threads) <= set(rates):
        return list(job.threads)
    return [max(job.threads, key=lambda threads: statistics.median(rates[threads]))]


@dataclass(frozen=True)
class Comparison:
    """Ours beside one variant of a peer, in rounds that have both."""

    target: Target
    variant: str
    peer: str
    peer_variant: str
    ours: list[float]
    theirs: list[float]
    num_rivals: int = 1
    """Peers that the hardest to beat was chosen from."""

    @property
    def ratios(self) -> list[float]:
        """Larger is better for us."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [theirs / ours if self.target.smaller_is_better else ours / theirs for ours, theirs in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_met(self) -> bool:
        return self.ratio >= self.target.at_least


def comparisons(target: Target, measurements: Sequence[Measurement]) -> list[Comparison]:
    """One per variant of ours, beside the peer's variant that is hardest to beat; none where nothing was measured."""
    ours = [m for m in measurements if m.peer == OURS and m.work == target.work]
    variants = dict.fromkeys(m.variant for m in ours if target.variant in (None, m.variant))
    peers = TORCH_PEERS if target.peer == ANY_TORCH else (target.peer,)
    theirs = [m for m in measurements if m.peer in peers and m.work == target.compared_work]
    rivals = dict.fromkeys((m.peer, m.variant) for m in theirs if target.peer_variant in (None, m.variant))
    found = []
    for variant in variants:
        own = _best_of_rounds(target, (m for m in ours if m.variant == variant))
        beside = [_beside(target, variant, own, theirs, rival) for rival in rivals]
        measured = [comparison for comparison in beside if comparison.ours]
        if measured:
            hardest = min(measured, key=lambda comparison: comparison.ratio)
            found.append(replace(hardest, num_rivals=len({comparison.peer for comparison in measured})))
    return found


def _beside(
    target: Target,
    variant: str,
    own: dict[tuple[str, int], float],
    theirs: Iterable[Measurement],
    rival: tuple[str, str],
) -> Comparison:
    other = _best_of_rounds(target, (m for m in theirs if (m.peer, m.variant) == rival))
    places = [place for place in own if place in other]
    return Comparison(target, variant, *rival, [own[p] for p in places], [other[p] for p in places])


def _best_of_rounds(target: Target, measurements: Iterable[Measurement]) -> dict[tuple[str, int], float]:
    """By round, the figure of the better thread setting."""
    best = min if target.smaller_is_better else max
    rounds: dict[tuple[str, int], float] = {}
    for measurement in measurements:
        value = measurement.figure(target.metric)
        if value is not None:
            rounds[measurement.place] = best(value, rounds.get(measurement.place, value))
    return rounds
