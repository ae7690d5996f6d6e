"""Settings of trials: points of a grid, random draws, or what Optuna's TPE proposes.

Trial k of a random search depends on the sweep's seed and on k alone. TPE proposes a batch at a time, from a study that
holds all earlier batches in the order of their numbers, with a seed made of the sweep's and the batch's first number. So
neither depends on which run ended first, nor on where a sweep was interrupted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relayrl.errors import MissingExtraError
from relayrl.sweeps.planning.parameter_ranges import Range, RangeKind
from relayrl.sweeps.sweep_settings import Direction, Sampler, SweepSettings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

DRAWS, TPE, POPULATION = 0, 1, 2
"""Streams of the sweep's seed."""


@dataclass(frozen=True, slots=True)
class SampledTrial:
    """What TPE learns from: settings, values by environment steps, and the final value; None where it was pruned or failed."""

    settings: Mapping[str, Any]
    by_step: Mapping[int, float]
    value: float | None


def num_trials(sweep: SweepSettings) -> int:
    """How many trials the sweep has, without regard to its budget."""
    if sweep.search is None:
        return int(np.prod([len(values) for values in sweep.grid.values()], dtype=np.int64))
    return sweep.search.population.size if sweep.is_population else sweep.trials


def settings_of_trials(
    sweep: SweepSettings, numbers: Sequence[int], earlier: Sequence[SampledTrial]
) -> list[dict[str, Any]]:
    """The settings of some trials that come after `earlier`."""
    if sweep.search is None:
        points = list(itertools.product(*sweep.grid.values()))
        return [dict(zip(sweep.grid, points[number], strict=True)) for number in numbers]
    ranges = sweep.search.parsed()
    if sweep.search.sampler is Sampler.TPE:
        return _proposed(sweep, ranges, numbers, earlier)
    return [drawn(ranges, np.random.default_rng([sweep.seed, DRAWS, number])) for number in numbers]


def drawn(ranges: Mapping[str, Range], rng: np.random.Generator) -> dict[str, Any]:
    """One value of every range."""
    return {name: each.draw(rng) for name, each in ranges.items()}


def require_sampler(sweep: SweepSettings) -> None:
    """Raise where the sampler needs what is not installed."""
    if sweep.search is not None and sweep.search.sampler is Sampler.TPE:
        _optuna()


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("search.sampler: tpe", "sweep") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _proposed(
    sweep: SweepSettings, ranges: Mapping[str, Range], numbers: Sequence[int], earlier: Sequence[SampledTrial]
) -> list[dict[str, Any]]:
    optuna = _optuna()
    seed = int(np.random.SeedSequence([sweep.seed, TPE, numbers[0]]).generate_state(1)[0])
    # The liar keeps the trials of a batch apart, which know nothing of each other's results.
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    direction = "maximize" if sweep.objective.direction is Direction.MAXIMIZE else "minimize"
    study = optuna.create_study(direction=direction, sampler=sampler)
    distributions = {name: _distribution(each) for name, each in ranges.items()}
    for trial in earlier:
        study.add_trial(_told(trial, ranges, distributions))
    asked = [study.ask(distributions).params for _ in numbers]
    return [{name: _value(ranges[name], params[name]) for name in ranges} for params in asked]


def _told(
    trial: SampledTrial, ranges: Mapping[str, Range], distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    params = {name: _param(ranges[name], value) for name, value in trial.settings.items()}
    is_pruned = trial.value is None and bool(trial.by_step)
    state = TrialState.COMPLETE if trial.value is not None else TrialState.PRUNED if is_pruned else TrialState.FAIL
    return create_trial(
        state=state,
        value=trial.value,
        params=params,
        distributions=dict(distributions),
        intermediate_values=dict(trial.by_step),
    )


def _distribution(values: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if values.kind is RangeKind.CHOICE:
        return CategoricalDistribution([json.dumps(each) for each in values.values])
    low, high = values.values
    if values.kind is RangeKind.INT:
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=values.kind is RangeKind.LOG)


def _param(values: Range, value: Any) -> Any:
    """A setting as Optuna has it: choices may be lists, which it does not take."""
    return json.dumps(value) if values.kind is RangeKind.CHOICE else value


def _value(values: Range, param: Any) -> Any:
    return json.loads(param) if values.kind is RangeKind.CHOICE else param
