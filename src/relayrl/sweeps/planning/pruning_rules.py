"""Where the runs of a sweep pause to be compared, and which trials go on from there."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from relayrl.sweeps.sweep_settings import ObjectiveSettings, PruningRule, PruningSettings


def rungs(pruning: PruningSettings | None, max_steps: int) -> list[int | None]:
    """Environment steps at which the runs pause; the last, None, is their end."""
    if pruning is None:
        return [None]
    if pruning.rule is PruningRule.MEDIAN:
        return [*range(pruning.interval, max_steps, pruning.interval), None]
    found, step = [], pruning.interval
    while step < max_steps:
        found.append(step)
        step *= pruning.eta
    return [*found, None]


def survivors(
    pruning: PruningSettings,
    objective: ObjectiveSettings,
    batch: Mapping[int, float | None],
    others: Sequence[float],
) -> list[int]:
    """The trials of a batch that go on from a rung, by their values there; `others` are the values of earlier batches.

    Trials that failed do not go on. Of equal ones, those with the lower number come first.
    """
    known = {number: objective.key(value) for number, value in batch.items() if value is not None}
    if pruning.rule is PruningRule.MEDIAN:
        middle = statistics.median([*known.values(), *map(objective.key, others)]) if known else 0.0
        return [number for number, key in known.items() if key >= middle]
    best_first = sorted(known, key=lambda number: (-known[number], number))
    return sorted(best_first[: max(1, len(known) // pruning.eta)])
