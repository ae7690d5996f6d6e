"""V-trace against numbers computed by hand, against GAE, and against the sum of the paper, decision by decision."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.algorithms.returns import gae
from relayrl.algorithms.vtrace.vtrace_params import APPOParams, IMPALAParams
from relayrl.algorithms.vtrace.vtrace_returns import vtrace

GAMMA = 0.9
PAPER = {"gamma": GAMMA, "lam": 1.0, "rho_bar": 1.0, "c_bar": 1.0}


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)[:, None]


NOT, BOTH = flags(0, 0), flags(1, 1)


def of(*columns: Any, **settings: float) -> tuple[list[float], list[float]]:
    """The weighed advantages, and targets."""
    found = vtrace(*columns, **(PAPER | settings))
    assert (found.advantage.dtype, found.target.dtype) == (np.float32, np.float32)
    return (found.rho * found.advantage)[:, 0].tolist(), found.target[:, 0].tolist()


def test_weights_below_one_shrink_a_td_error_and_what_follows_it():
    # ρ = ½, 1: δ1 = 1 + .9·4 − 3 = 1.6;  δ0 = ½ (1 + .9·3 − 2) = .85;  v1 = 4.6, v0 = 2 + .85 + .9·½·1.6 = 3.57
    # Â1 = 1.6;  Â0 = ½ (1 + .9·4.6 − 2) = 1.57
    ratio = np.log(column(0.5, 1.0))
    advantage, target = of(column(1, 1), column(2, 3), column(3, 4), NOT, NOT, BOTH, ratio)
    assert advantage == pytest.approx([1.57, 1.6])
    assert target == pytest.approx([3.57, 4.6])


def test_weights_above_the_bounds_are_clipped_each_by_its_own():
    # π/μ = 4: ρ = 2, c = 1.5; δ0 = 2 · 1.7 = 3.4;  v0 = 2 + 3.4 + .9·1.5·1.6 = 7.56;  Â0 = 2 (1 + .9·4.6 − 2) = 6.28
    ratio = np.log(column(4.0, 1.0))
    columns = (column(1, 1), column(2, 3), column(3, 4), NOT, NOT, BOTH, ratio)
    advantage, target = of(*columns, rho_bar=2.0, c_bar=1.5)
    assert advantage == pytest.approx([6.28, 1.6])
    assert target == pytest.approx([7.56, 4.6])
    assert of(*columns)[1] == pytest.approx([2 + 1.7 + 0.9 * 1.6, 4.6])


def test_truncation_bootstraps_from_the_successor_and_termination_from_nothing():
    ratio = np.log(column(0.5, 1.0))
    rows = (column(1, 1), column(2, 3), column(10, 4))
    # δ0 = ½ (1 + .9·10 − 2) = 4, and nothing of row 1 flows back; terminated: ½ (1 − 2) = −½
    assert of(*rows, NOT, flags(1, 0), BOTH, ratio) == (pytest.approx([4.0, 1.6]), pytest.approx([6.0, 4.6]))
    assert of(*rows, flags(1, 0), NOT, BOTH, ratio) == (pytest.approx([-0.5, 1.6]), pytest.approx([1.5, 4.6]))


def test_a_reward_on_a_row_without_a_decision_belongs_to_the_decision_before_it():
    # Row 1 brings 10 for row 0's decision, whose next one is row 2: δ0 = ½ (11 + .9·3 − 2) = 5.85.
    ratio = np.log(column(0.5, 7.0, 1.0))
    nowhere = flags(0, 0, 0)
    advantage, target = of(
        column(1, 10, 1), column(2, 99, 3), column(99, 3, 4), nowhere, nowhere, flags(1, 0, 1), ratio
    )
    assert advantage == pytest.approx([0.5 * (11 + 0.9 * 4.6 - 2), 0.0, 1.6])
    assert [target[0], target[2]] == pytest.approx([2 + 5.85 + 0.9 * 0.5 * 1.6, 4.6])


def block(seed: int, T: int, L: int, *, gaps: bool) -> tuple[np.ndarray, ...]:
    """Random columns of a rollout, whose `next_value` is that of the next row unless an episode ended."""
    rng = np.random.default_rng(seed)
    reward, value, after, log_ratio = (rng.normal(size=(T, L)).astype(np.float32) for _ in range(4))
    terminated = rng.random((T, L)) < 0.15
    truncated = (rng.random((T, L)) < 0.15) & ~terminated
    valid = rng.random((T, L)) < 0.6 if gaps else np.ones((T, L), bool)
    next_value = after.copy()
    goes_on = ~(terminated | truncated)[:-1]
    next_value[:-1][goes_on] = value[1:][goes_on]
    return reward, value, next_value, terminated, truncated, valid, log_ratio


BLOCKS = {"seed": st.integers(0, 2**32), "T": st.integers(1, 24), "L": st.integers(1, 4), "gaps": st.booleans()}


@settings(max_examples=150, deadline=None)
@given(**BLOCKS, lam=st.sampled_from([0.0, 0.7, 1.0]), bar=st.sampled_from([1.0, 3.0]))
def test_where_the_learning_policy_acted_it_is_gae(seed, T, L, gaps, lam, bar):
    *columns, log_ratio = block(seed, T, L, gaps=gaps)
    same = np.zeros_like(log_ratio)
    found = vtrace(*columns, same, gamma=GAMMA, lam=lam, rho_bar=bar, c_bar=bar)
    expected = gae(*columns, gamma=GAMMA, lam=lam)
    np.testing.assert_allclose(found.advantage, expected, rtol=1e-4, atol=1e-5)
    value, valid = columns[1], columns[5]
    np.testing.assert_allclose(found.target[valid], (expected + value)[valid], rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(seed=BLOCKS["seed"], T=BLOCKS["T"], L=BLOCKS["L"])
def test_the_target_is_then_the_discounted_return_to_the_end_of_the_block(seed, T, L):
    reward, value, next_value, terminated, truncated, valid, log_ratio = block(seed, T, L, gaps=False)
    same = np.zeros_like(log_ratio)
    target = vtrace(reward, value, next_value, terminated, truncated, valid, same, **PAPER).target
    for lane in range(L):
        for start in range(T):
            total = 0.0
            for t in range(start, T):
                total += GAMMA ** (t - start) * float(reward[t, lane])
                if terminated[t, lane]:
                    break
                if truncated[t, lane] or t == T - 1:
                    total += GAMMA ** (t - start + 1) * float(next_value[t, lane])
                    break
            assert target[start, lane] == pytest.approx(total, rel=1e-4, abs=1e-4)


def slow_vtrace(
    columns: tuple[np.ndarray, ...], lane: int, gamma: float, lam: float, rho_bar: float, c_bar: float
) -> dict[int, tuple[float, float]]:
    """By row of each decision of a lane: advantage and target, as sums in float64 over the decisions that follow."""
    reward, value, next_value, terminated, truncated, valid, log_ratio = (c[:, lane].tolist() for c in columns)
    decisions: list[dict[str, Any]] = []
    for t in range(len(reward)):
        if valid[t]:
            ratio = np.exp(np.float64(log_ratio[t]))
            last = {"row": t, "reward": 0.0, "value": value[t], "after": None, "ratio": ratio, "is_last": False}
            decisions.append(last)
        # What arrives belongs to the latest decision, unless its episode is over.
        if decisions and not decisions[-1]["is_last"]:
            decisions[-1]["reward"] += reward[t]
            if terminated[t] or truncated[t]:
                decisions[-1] |= {"is_last": True, "after": 0.0 if terminated[t] else next_value[t]}
    if decisions and decisions[-1]["after"] is None:
        decisions[-1] |= {"is_last": True, "after": next_value[-1]}
    for here, following in pairwise(decisions):
        here["after"] = following["value"] if here["after"] is None else here["after"]
    targets = []
    for s in range(len(decisions)):
        target, weight = decisions[s]["value"], 1.0
        for each in decisions[s:]:
            delta = min(rho_bar, each["ratio"]) * (each["reward"] + gamma * each["after"] - each["value"])
            target += weight * delta
            weight *= gamma * lam * min(c_bar, each["ratio"])
            if each["is_last"]:
                break
        targets.append(target)
    found = {}
    for s, each in enumerate(decisions):
        ahead = each["after"] if each["is_last"] else lam * targets[s + 1] + (1.0 - lam) * decisions[s + 1]["value"]
        advantage = min(rho_bar, each["ratio"]) * (each["reward"] + gamma * ahead - each["value"])
        found[each["row"]] = (advantage, targets[s])
    return found


@settings(max_examples=150, deadline=None)
@given(**BLOCKS, lam=st.sampled_from([0.0, 0.7, 1.0]), bars=st.sampled_from([(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)]))
def test_it_is_the_sum_of_the_paper(seed, T, L, gaps, lam, bars):
    columns = block(seed, T, L, gaps=gaps)
    found = vtrace(*columns, gamma=GAMMA, lam=lam, rho_bar=bars[0], c_bar=bars[1])
    advantage, target = found.rho * found.advantage, found.target
    for lane in range(L):
        expected = slow_vtrace(columns, lane, GAMMA, lam, *bars)
        for t in range(T):
            if t in expected:
                assert advantage[t, lane] == pytest.approx(expected[t][0], rel=1e-3, abs=1e-4)
                assert target[t, lane] == pytest.approx(expected[t][1], rel=1e-3, abs=1e-4)
            else:
                assert advantage[t, lane] == 0.0


def test_a_ratio_that_would_overflow_is_clipped():
    advantage, target = of(column(1, 1), column(2, 3), column(3, 4), NOT, NOT, BOTH, column(1e6, -1e6))
    assert advantage == pytest.approx([1.7, 0.0])
    assert target == pytest.approx([3.7, 3.0])


@pytest.mark.parametrize("params", [IMPALAParams, APPOParams])
def test_c_bar_is_at_most_rho_bar(params):
    assert params(rho_bar=2.0, c_bar=2.0).c_bar == 2.0
    with pytest.raises(ValueError, match=r"c_bar 2\.0 is larger than rho_bar 1\.0"):
        params(c_bar=2.0)
