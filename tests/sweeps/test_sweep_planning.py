"""What a sweep plans: draws, proposals, rungs and generations, with numbers, and independent of when results arrive."""

import numpy as np
import pytest

from relayrl.config.settings import parse_settings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.sweeps.planning.parameter_ranges import Range
from relayrl.sweeps.planning.population import Member, generation_ends, next_generation
from relayrl.sweeps.planning.pruning_rules import rungs, survivors
from relayrl.sweeps.planning.sweep_plan import next_jobs
from relayrl.sweeps.planning.trial_sampling import SampledTrial, settings_of_trials
from relayrl.sweeps.sweep_settings import ObjectiveSettings, PopulationSettings, PruningSettings, SweepSettings
from relayrl.sweeps.trial_jobs import TrialOutcome

RANGES = {
    "pi_lr": {"log": [1.0e-4, 1.0e-1]},
    "gamma": {"float": [0.9, 0.99]},
    "iters": {"int": [1, 4]},
    "sizes": {"choice": [[64], [64, 64]]},
}
UP = ObjectiveSettings()
DOWN = ObjectiveSettings(direction="minimize")


def made(**values: object) -> SweepSettings:
    return parse_settings(SweepSettings, {"env": "CartPole-v1", **values})


def test_draws_lie_in_their_ranges_and_log_ranges_are_even_in_decades():
    rng = np.random.default_rng(0)
    parsed = {name: Range.parse(name, given) for name, given in RANGES.items()}
    drawn = {name: [each.draw(rng) for _ in range(3_000)] for name, each in parsed.items()}
    assert 1e-4 <= min(drawn["pi_lr"]) < max(drawn["pi_lr"]) <= 1e-1
    assert np.mean(np.array(drawn["pi_lr"]) < 1e-3) == pytest.approx(1 / 3, abs=0.03)
    assert 0.9 <= min(drawn["gamma"]) < max(drawn["gamma"]) <= 0.99
    assert set(drawn["iters"]) == {1, 2, 3, 4}
    assert sorted(map(len, drawn["sizes"]))[0] == 1


def test_a_perturbed_value_moves_and_stays_in_its_range():
    rng = np.random.default_rng(0)
    rate, count, sizes = (Range.parse(name, RANGES[name]) for name in ("pi_lr", "iters", "sizes"))
    moved = sorted({rate.perturb(1e-2, (0.8, 1.25), rng) for _ in range(20)})
    assert moved == [pytest.approx(8e-3), pytest.approx(1.25e-2)]
    assert rate.perturb(1e-1, (1.25,), rng) == 1e-1
    assert count.perturb(1, (1.25,), rng) == 2  # 1.25 would be 1 for ever
    assert count.perturb(1, (0.8,), rng) == 1
    assert sizes.perturb([64], (1.25,), rng) == [64, 64]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"log": [0.0, 1.0]}, "above 0"),
        ({"float": [1.0, 1.0]}, "less than high"),
        ({"int": [1, 2.5]}, "whole numbers"),
        ({"choice": []}, "list of values"),
        ({"float": [0, 1], "log": [1, 2]}, "write one of"),
    ],
)
def test_wrong_ranges_are_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Range.parse("x", given)


def test_an_unknown_kind_of_range_offers_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'float'"):
        Range.parse("x", {"flaot": [0, 1]})


def test_trial_k_of_a_random_search_depends_on_the_seed_and_on_k_alone():
    few, many = (made(trials=n, search={"ranges": RANGES}) for n in (3, 30))
    first = settings_of_trials(few, range(3), ())
    assert settings_of_trials(many, [2, 1, 0], ()) == first[::-1]
    other = made(seed=1, search={"ranges": RANGES})
    assert settings_of_trials(other, range(3), ())[0] != first[0]


def test_tpe_proposes_near_what_did_well():
    sweep = made(search={"sampler": "tpe", "ranges": {"x": {"float": [0.0, 1.0]}}})
    told = [SampledTrial({"x": x}, {}, -abs(x - 0.8)) for x in np.linspace(0, 1, 21)]
    proposed = [point["x"] for point in settings_of_trials(sweep, range(21, 41), told)]
    assert abs(np.median(proposed) - 0.8) < 0.15
    assert proposed == [point["x"] for point in settings_of_trials(sweep, range(21, 41), told)]


def test_tpe_learns_from_pruned_trials_and_passes_over_failed_ones():
    sweep = made(search={"sampler": "tpe", "ranges": RANGES})
    (some,) = settings_of_trials(sweep, [0], ())
    told = [SampledTrial(some, {10: 3.0}, None), SampledTrial(some, {}, None), SampledTrial(some, {10: 3.0}, 5.0)]
    assert set(settings_of_trials(sweep, [3], told)[0]) == set(RANGES)


def test_rungs():
    median, halving = PruningSettings(rule="median", interval=10), PruningSettings(rule="halving", interval=10, eta=3)
    assert rungs(None, 100) == [None]
    assert rungs(median, 30) == [10, 20, None]
    assert rungs(halving, 100) == [10, 30, 90, None]
    assert generation_ends(PopulationSettings(interval=40), 100) == [40, 80, None]
    assert generation_ends(PopulationSettings(), 100)[:2] == [10, 20]


def test_the_median_rule_compares_with_earlier_batches():
    rule = PruningSettings(rule="median", interval=10)
    values = {4: 1.0, 5: 2.0, 6: None, 7: 9.0}
    assert survivors(rule, UP, values, []) == [5, 7]
    assert survivors(rule, UP, values, [8.0, 8.0]) == [7]
    assert survivors(rule, DOWN, values, [8.0, 8.0]) == [4, 5]
    assert survivors(rule, UP, {1: None}, []) == []


def test_halving_keeps_one_in_eta_but_at_least_one():
    rule = PruningSettings(rule="halving", interval=10, eta=2)
    assert survivors(rule, UP, {0: 1.0, 1: 3.0, 2: 3.0, 3: 0.0, 4: None}, []) == [1, 2]
    assert survivors(rule, DOWN, {0: 1.0, 1: 3.0, 2: 3.0, 3: 0.0}, []) == [0, 3]
    assert survivors(rule, UP, {7: 1.0}, []) == [7]


def test_the_worst_members_take_over_the_best():
    ranges = {"x": Range.parse("x", {"float": [0.0, 10.0]})}
    members = {number: Member({"x": float(number)}, float(number)) for number in range(8)}
    population = PopulationSettings(size=8, truncation=0.25, resample=0.0, factors=(1.25,))
    born = next_generation(population, ranges, UP, members, seed=0, generation=1)
    assert [number for number, each in born.items() if each.parent != number] == [0, 1]
    assert {born[0].parent, born[1].parent} <= {6, 7}
    assert all(born[n].settings["x"] == pytest.approx(born[n].parent * 1.25) for n in (0, 1))
    assert next_generation(population, ranges, UP, members, seed=0, generation=1) == born
    down = next_generation(population, ranges, DOWN, members, seed=0, generation=1)
    assert [number for number, each in down.items() if each.parent != number] == [6, 7]


def test_members_that_failed_are_replaced_first():
    ranges = {"x": Range.parse("x", {"float": [0.0, 10.0]})}
    members = {0: Member({"x": 1.0}, 1.0), 1: Member({"x": 1.0}, None), 2: Member({"x": 1.0}, 3.0)}
    born = next_generation(PopulationSettings(size=3), ranges, UP, members, seed=0, generation=1)
    assert {number: each.parent for number, each in born.items()} == {0: 0, 1: 2, 2: 2}
    lost = {number: Member({"x": 1.0}, None) for number in range(3)}
    assert next_generation(PopulationSettings(size=3), ranges, UP, lost, seed=0, generation=1) == {}


def play(sweep, value, order):
    """The jobs of a sweep when all that wait end in `order`, in groups of three."""
    jobs = []
    while new := next_jobs(sweep, jobs, lambda settings: 100):
        for group in np.array_split(order.permutation(len(new)), max(1, len(new) // 3)):
            jobs += [new[i].ended(TrialOutcome(value(new[i]))) for i in group]
            assert not {job.key for job in next_jobs(sweep, jobs, lambda settings: 100)} & {job.key for job in jobs}
    return {job.key: (job.settings, job.until, job.parent, job.outcome.value) for job in jobs}


SWEEPS = {
    "grid": {"grid": {"a": [1, 2], "b": [3.0, 4.0, 5.0]}},
    "random": {"search": {"ranges": {"a": {"float": [0, 5]}}}, "trials": 7},
    "tpe": {"search": {"sampler": "tpe", "ranges": {"a": {"float": [0, 5]}}}, "trials": 10},
    "median": {"search": {"ranges": {"a": {"float": [0, 5]}}}, "pruning": {"rule": "median", "interval": 30}},
    "halving": {
        "search": {"ranges": {"a": {"float": [0, 5]}}},
        "batch": 9,
        "pruning": {"rule": "halving", "interval": 10},
    },
    "tpe-halving": {
        "search": {"sampler": "tpe", "ranges": {"a": {"float": [0, 5]}}},
        "pruning": {"rule": "halving", "interval": 40, "eta": 2},
    },
    "pbt": {
        "search": {"sampler": "pbt", "ranges": {"a": {"float": [0, 5]}}, "population": {"size": 5, "interval": 20}}
    },
}


WHOLE_TRIALS = {"grid": 6, "random": 7, "tpe": 10, "median": 4, "halving": 3, "tpe-halving": 5, "pbt": 5}
"""Trials that come to their end; of each of three or five batches that are halved, one."""


@pytest.mark.parametrize("name", SWEEPS)
def test_the_plan_is_the_same_whatever_ends_first(name):
    sweep = made(seeds=[1, 2], **SWEEPS[name])

    def value(job):
        return job.settings["a"] * (job.until or 100) + job.seed

    plans = [play(sweep, value, np.random.default_rng(seed)) for seed in range(3)]
    assert plans[0] == plans[1] == plans[2]
    num_ends = sum(until is None for _, until, _, _ in plans[0].values())
    assert num_ends == WHOLE_TRIALS[name] * len(sweep.seeds)


def test_a_budget_of_steps_ends_the_search_and_what_pruning_saves_counts_for_others():
    whole = made(seeds=[1, 2], trials=20, search=SWEEPS["random"]["search"], budget={"env_steps": 700})
    assert len(play(whole, lambda job: 0.0, np.random.default_rng(0))) == 3 * 2  # 100 steps for each of two seeds
    pruned = whole.model_copy(update={"pruning": PruningSettings(rule="halving", interval=10, eta=3), "batch": 3})
    jobs = play(pruned, lambda job: job.settings["a"], np.random.default_rng(0))
    assert len({trial for trial, _, _ in jobs}) == 3 + 2  # the first three take 2 × (100 + 10 + 10)


def test_what_cannot_be_is_refused():
    for values, complaint in [
        ({"grid": {"a": [1]}, "search": {"ranges": RANGES}}, "grid or a search"),
        ({"grid": {"seed": [1, 2]}}, "under seeds"),
        ({"grid": {"a": []}}, "no values"),
        ({"seeds": [1, 1]}, "each seed once"),
        ({"state": "mysql://x"}, "sqlite, or a URL"),
        ({"objective": {"metric": "return"}}, "column of progress.csv"),
        (
            {"search": {"sampler": "pbt", "ranges": RANGES}, "pruning": {"rule": "median", "interval": 1}},
            "leave out pruning",
        ),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            made(**values)
