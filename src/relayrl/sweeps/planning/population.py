"""Population-based training (Jaderberg et al. 2017), in synchronous generations.

All members train for an interval. Then those in the worst share take over networks, optimiser and settings of a member
drawn from the best share, and their settings are perturbed or drawn anew. Who copies from whom follows from the sweep's
seed, the generation and the values alone, so the lineage is the same however fast the members were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.sweeps.planning.parameter_ranges import Range
from relayrl.sweeps.planning.trial_sampling import POPULATION
from relayrl.sweeps.sweep_settings import ObjectiveSettings, PopulationSettings


@dataclass(frozen=True, slots=True)
class Member:
    """A member at the end of a generation; the value is None where it failed."""

    settings: Mapping[str, Any]
    value: float | None


@dataclass(frozen=True, slots=True)
class Successor:
    """A member at the beginning of a generation, and the one whose networks it begins with."""

    settings: Mapping[str, Any]
    parent: int


def generation_ends(population: PopulationSettings, max_steps: int) -> list[int | None]:
    """Environment steps at which generations end; the last, None, is the run's end."""
    interval = population.interval or max(1, max_steps // 10)
    return [*range(interval, max_steps, interval), None]


def next_generation(
    population: PopulationSettings,
    ranges: Mapping[str, Range],
    objective: ObjectiveSettings,
    members: Mapping[int, Member],
    seed: int,
    generation: int,
) -> dict[int, Successor]:
    """The members of `generation`, after the one before; empty where every member has failed."""
    best_first = sorted(
        (number for number, member in members.items() if member.value is not None),
        key=lambda number: (-objective.key(members[number].value or 0.0), number),
    )
    if not best_first:
        return {}
    num_copied = min(max(1, int(population.truncation * len(members))), max(1, len(best_first) // 2))
    failed = [number for number, member in members.items() if member.value is None]
    worst = best_first[num_copied:][-max(0, num_copied - len(failed)) :] if num_copied > len(failed) else []
    replaced = {*failed, *worst}
    found = {}
    for number, member in members.items():
        if number not in replaced:
            found[number] = Successor(member.settings, number)
            continue
        rng = np.random.default_rng([seed, POPULATION, generation, number])
        parent = best_first[int(rng.integers(num_copied))]
        found[number] = Successor(_explored(population, ranges, members[parent].settings, rng), parent)
    return found


def _explored(
    population: PopulationSettings, ranges: Mapping[str, Range], settings: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, Any]:
    explored = {}
    for name, each in ranges.items():
        is_drawn = rng.random() < population.resample
        explored[name] = each.draw(rng) if is_drawn else each.perturb(settings[name], population.factors, rng)
    return explored
