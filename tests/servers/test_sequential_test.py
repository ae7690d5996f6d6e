"""The comparison of returns: hand-computed numbers, and its error rates under repeated looks."""

import math

import numpy as np
import pytest

from relayrl.servers.inference.sequential_test import MIN_EPISODES, Judgement, Returns, bound, compare


def returns_of(values) -> Returns:
    collected = Returns()
    for value in values:
        collected.add(float(value))
    return collected


def test_moments_are_those_of_all_values():
    values = np.random.default_rng(0).normal(1e6, 3.0, 500)
    collected = returns_of(values)
    assert collected.count == 500
    assert collected.mean == pytest.approx(values.mean(), rel=1e-12)
    assert collected.variance == pytest.approx(values.var(ddof=1), rel=1e-6)


def test_the_bound_is_robbins_normal_mixture():
    alpha, information = 0.05, 50.0
    rho = 50.0 / (2 * math.log(20) + math.log(1 + 2 * math.log(20)))
    assert bound(information, alpha) == pytest.approx(
        math.sqrt((1 + rho / information) * math.log((information + rho) / (rho * alpha**2)))
    )
    assert 2.9 < bound(50.0, 0.05) < 3.2  # looked at once it would be 1.96
    assert bound(1e6, 0.05) > bound(50.0, 0.05)  # the price of looking for ever


def test_the_interval_is_d_plus_minus_s_times_the_bound():
    old, new = returns_of([0.0, 2.0] * 50), returns_of([1.0, 3.0] * 50)
    found = compare(old, new)
    error = math.sqrt(2 * (100 / 99) / 100)
    assert found.difference == pytest.approx(1.0)
    assert found.high - found.difference == pytest.approx(error * bound(50.0, 0.05), rel=1e-6)
    assert found.judgement is Judgement.BETTER
    assert compare(new, old).judgement is Judgement.WORSE


def test_nothing_is_decided_on_few_episodes():
    old, new = returns_of([500.0] * 1000), returns_of([9.0] * (MIN_EPISODES - 1))
    assert compare(old, new).judgement is Judgement.UNDECIDED
    new.add(9.0)
    assert compare(old, new).judgement is Judgement.WORSE  # constants that differ


def test_equal_constants_are_never_told_apart():
    assert compare(returns_of([500.0] * 99), returns_of([500.0] * 99)).judgement is Judgement.UNDECIDED


def _normal(rng, shape):
    return rng.normal(100.0, 15.0, shape)


def _skewed(rng, shape):
    return rng.exponential(50.0, shape)


def _mostly_full(rng, shape):
    """CartPole near its bound: 500, and now and then a short episode."""
    return np.where(rng.random(shape) < 0.1, rng.uniform(10, 200, shape), 500.0)


def _verdicts(draw, num_trials, num_old, num_new, shift, seed, alpha=0.05):
    """Share of trials that are ever judged worse, and ever judged anything, looking after every canary episode."""
    rng = np.random.default_rng(seed)
    ratio = num_old // num_new
    n1 = np.arange(1, num_new + 1)
    n0 = n1 * ratio
    worse = decided = 0
    limit = None
    for _ in range(num_trials):
        old, new = draw(rng, num_old), draw(rng, num_new) - shift
        m0, m1 = np.cumsum(old)[n0 - 1] / n0, np.cumsum(new) / n1
        q0 = np.cumsum(old**2)[n0 - 1] - n0 * m0**2
        q1 = np.cumsum(new**2) - n1 * m1**2
        error = np.maximum(q0, 0) / np.maximum(n0 - 1, 1) / n0 + np.maximum(q1, 0) / np.maximum(n1 - 1, 1) / n1
        pooled = np.maximum(q0 + q1, 0) / np.maximum(n0 + n1 - 2, 1)
        error = np.maximum(error, pooled * (1 / n0 + 1 / n1))
        with np.errstate(divide="ignore", invalid="ignore"):
            information = np.where(error > 0, pooled / error, n0 * n1 / (n0 + n1))
            z = (m1 - m0) / np.sqrt(error)
        limit = np.array([bound(max(t, 1e-9), alpha) for t in information])
        looks = (n1 >= MIN_EPISODES) & (n0 >= MIN_EPISODES)
        worse += bool((z[looks] < -limit[looks]).any())
        decided += bool((np.abs(z[looks]) > limit[looks]).any())
    return worse / num_trials, decided / num_trials


@pytest.mark.parametrize("draw", [_normal, _skewed, _mostly_full])
@pytest.mark.parametrize("ratio", [1, 9])
def test_equal_versions_are_rarely_told_apart_however_often_one_looks(draw, ratio):
    num_new = 400
    worse, decided = _verdicts(draw, 300, ratio * num_new, num_new, shift=0.0, seed=1)
    assert decided <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert worse <= 0.05


def test_looking_again_and_again_at_a_fixed_bound_would_err():
    """What the sequential bound is for: the simulation itself can fail."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(200):
        difference = np.cumsum(rng.normal(0, 1, 2000)) / np.sqrt(np.arange(1, 2001))
        wrong += bool((np.abs(difference[30:]) > 1.96).any())
    assert wrong / 200 > 0.3


@pytest.mark.parametrize(("shift", "least"), [(15.0, 0.95), (7.5, 0.5)])
def test_worse_versions_are_found(shift, least):
    """Shifts of one and of half a standard deviation, 10% of actors, 300 episodes of the canary."""
    worse, _ = _verdicts(_normal, 60, 2700, 300, shift=shift, seed=3)
    assert worse >= least


def test_the_simulation_computes_what_compare_does():
    rng = np.random.default_rng(4)
    old, new = _skewed(rng, 200), _skewed(rng, 200) - 60.0
    assert compare(returns_of(old), returns_of(new)).judgement is Judgement.WORSE
    worse, _ = _verdicts(_skewed, 5, 200, 200, shift=60.0, seed=5)
    assert worse == 1.0
