"""From the jobs of a sweep so far to those that come next: a pure function, so that processes which share a sweep agree on it.

    for each batch of trials           one batch, unless TPE learns from earlier ones or pruning compares them
        for each rung                  one rung, unless trials are pruned
            every trial that goes on, with every seed

A population is one batch of which every member goes on, with other settings and perhaps another one's networks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from relayrl.sweeps.planning.population import Member, generation_ends, next_generation
from relayrl.sweeps.planning.pruning_rules import rungs, survivors
from relayrl.sweeps.planning.trial_sampling import SampledTrial, num_trials, settings_of_trials
from relayrl.sweeps.sweep_settings import Sampler, SearchSettings, SweepSettings
from relayrl.sweeps.trial_jobs import Job, Trial, trials_of

MaxSteps = Callable[[Mapping[str, Any]], int]
"""Environment steps of a run with the settings of a trial."""


def next_jobs(sweep: SweepSettings, jobs: Sequence[Job], max_steps: MaxSteps) -> list[Job]:
    """Jobs that are not there yet and can begin now. None are left once all jobs are over and this gives none."""
    known = {job.key for job in jobs}
    if sweep.search is not None and sweep.is_population:
        plan = _population(sweep, sweep.search, jobs, max_steps)
    else:
        plan = _batches(sweep, jobs, max_steps)
    return [job for job in plan if job.key not in known]


def _batches(sweep: SweepSettings, jobs: Sequence[Job], max_steps: MaxSteps) -> Iterator[Job]:
    trials = trials_of(jobs)
    is_tpe = sweep.search is not None and sweep.search.sampler is Sampler.TPE
    num_steps_left = math.inf if sweep.budget.env_steps is None else sweep.budget.env_steps
    for batch in batches(sweep):
        known = {number: trials[number].settings for number in batch if number in trials}
        if len(known) < len(batch):
            earlier = [_sampled(sweep, trials[number], max_steps) for number in range(batch[0])] if is_tpe else []
            chosen = dict(zip(batch, settings_of_trials(sweep, batch, earlier), strict=True)) | known
        else:
            chosen = known
        costs = {number: max_steps(chosen[number]) * len(sweep.seeds) for number in batch}
        sums = itertools.accumulate(costs.values())
        affordable = [number for number, cost in zip(batch, sums, strict=True) if cost <= num_steps_left]
        if not affordable:
            return
        planned, is_through = _batch(sweep, affordable, chosen, trials, max_steps)
        yield from planned
        if not is_through or len(affordable) < len(batch):
            return
        # What pruning saves is there for others.
        num_steps_left -= sum(_num_steps(trials[number], max_steps) * len(sweep.seeds) for number in batch)


def batches(sweep: SweepSettings) -> list[range]:
    """The numbers of trials that are proposed and compared together; all of a batch end before the next begins."""
    is_tpe = sweep.search is not None and sweep.search.sampler is Sampler.TPE
    total = num_trials(sweep)
    size = sweep.batch if is_tpe or sweep.pruning is not None else total
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


def _batch(
    sweep: SweepSettings,
    batch: Sequence[int],
    chosen: Mapping[int, Mapping[str, Any]],
    trials: Mapping[int, Trial],
    max_steps: MaxSteps,
) -> tuple[list[Job], bool]:
    """The jobs of a batch as far as they are decided, and whether nothing more can come of it."""
    jobs: list[Job] = []
    going_on = list(batch)
    for rung, until in enumerate(rungs(sweep.pruning, max_steps(chosen[batch[0]]))):
        jobs += [Job(number, rung, seed, chosen[number], until) for number in going_on for seed in sweep.seeds]
        if any(number not in trials or not trials[number].is_over(rung) for number in going_on):
            return jobs, False
        if sweep.pruning is not None:
            reached = {number: trials[number].value(rung) for number in going_on}
            before = [trials[number].value(rung) for number in range(batch[0])]
            others = [value for value in before if value is not None]
            going_on = survivors(sweep.pruning, sweep.objective, reached, others)
    return jobs, True


def _sampled(sweep: SweepSettings, trial: Trial, max_steps: MaxSteps) -> SampledTrial:
    ends = rungs(sweep.pruning, max_steps(trial.settings))
    values = {rung: trial.value(rung) for rung in range(trial.last_rung + 1)}
    by_step = {end: value for rung, end in enumerate(ends) if end and (value := values.get(rung)) is not None}
    final = values.get(len(ends) - 1)
    return SampledTrial(trial.settings, {} if trial.error else by_step, None if trial.error else final)


def _num_steps(trial: Trial, max_steps: MaxSteps) -> int:
    """Environment steps of each run of a trial."""
    return trial.at(trial.last_rung)[0].until or max_steps(trial.settings)


def _population(
    sweep: SweepSettings, search: SearchSettings, jobs: Sequence[Job], max_steps: MaxSteps
) -> Iterator[Job]:
    population, ranges, trials = search.population, search.parsed(), trials_of(jobs)
    numbers = range(population.size)
    chosen = dict(zip(numbers, settings_of_trials(sweep, numbers, ()), strict=True))
    parents: dict[int, int | None] = dict.fromkeys(numbers)
    for generation, until in enumerate(generation_ends(population, max_steps({}))):
        if generation:
            members = {number: Member(chosen[number], trials[number].value(generation - 1)) for number in numbers}
            successors = next_generation(population, ranges, sweep.objective, members, sweep.seed, generation)
            if not successors:
                return
            chosen = {number: dict(each.settings) for number, each in successors.items()}
            parents = {number: each.parent for number, each in successors.items()}
        for number in numbers:
            yield from (Job(number, generation, seed, chosen[number], until, parents[number]) for seed in sweep.seeds)
        if any(number not in trials or not trials[number].is_over(generation) for number in numbers):
            return
