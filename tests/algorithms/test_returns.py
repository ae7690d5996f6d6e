"""GAE and friends against numbers computed by hand."""

import numpy as np
import pytest

from relayrl.accelerator import on_policy_kernels
from relayrl.algorithms.returns import explained_variance, gae, normalized, with_successor_values
from relayrl.data.columns import Successors

GAMMA, LAM = 0.9, 0.5


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)[:, None]


def advantages(reward, value, next_value, terminated, truncated, valid) -> list[float]:
    columns = (reward, value, next_value, terminated, truncated, valid)
    result = gae(*columns, gamma=GAMMA, lam=LAM)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(on_policy_kernels.gae(*columns, gamma=GAMMA, lam=LAM), result)
    return result[:, 0].tolist()


def test_running_episode_bootstraps_from_the_value_after_the_block():
    # δ2 = 1 + .9·4 − 3 = 1.6;  δ1 = 1 + .9·3 − 2 = 1.7, Â1 = 1.7 + .45·1.6 = 2.42
    got = advantages(column(1, 1), column(2, 3), column(3, 4), flags(0, 0), flags(0, 0), flags(1, 1))
    assert got == pytest.approx([2.42, 1.6])


def test_termination_cuts_the_bootstrap():
    # δ2 = 1 − 3 = −2;  Â1 = 1.7 − .45·2 = 0.8
    got = advantages(column(1, 1), column(2, 3), column(3, 4), flags(0, 1), flags(0, 0), flags(1, 1))
    assert got == pytest.approx([0.8, -2.0])


def test_truncation_keeps_the_bootstrap_but_not_the_next_episodes_advantage():
    # Row 0 is truncated with a final value of 10: δ0 = 1 + 9 − 2 = 8, and nothing of row 1 flows back.
    got = advantages(column(1, 1), column(2, 3), column(10, 4), flags(0, 0), flags(1, 0), flags(1, 1))
    assert got == pytest.approx([8.0, 1.6])


def test_lanes_do_not_mix():
    reward = np.array([[1, 5], [1, 5]], np.float32)
    zeros, ones = np.zeros((2, 2), bool), np.ones((2, 2), bool)
    value = np.zeros((2, 2), np.float32)
    got = gae(reward, value, value, zeros, zeros, ones, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(got, [[1.45, 7.25], [1, 5]], rtol=1e-6)


def test_rewards_on_rows_without_a_decision_belong_to_the_decision_before_them():
    # Decisions on rows 0 and 2; row 1 brings 10 more for row 0's decision.
    # δ2 = 1 + .9·4 − 3 = 1.6;  δ0 = (1 + 10) + .9·3 − 2 = 11.7, Â0 = 11.7 + .45·1.6 = 12.42
    got = advantages(
        column(1, 10, 1), column(2, 99, 3), column(99, 3, 4), flags(0, 0, 0), flags(0, 0, 0), flags(1, 0, 1)
    )
    assert got == pytest.approx([12.42, 0.0, 1.6])


def test_an_end_on_a_row_without_a_decision_ends_the_decision_before_it():
    # The opponent's move on row 1 loses the game for this lane: Â0 = (0 − 1) − 2.
    got = advantages(
        column(0, -1, 1), column(2, 99, 3), column(99, 50, 4), flags(0, 1, 0), flags(0, 0, 0), flags(1, 0, 1)
    )
    assert got == pytest.approx([-3.0, 0.0, 1.6])


def test_a_reward_after_an_agents_end_belongs_to_no_decision():
    # Row 0 ends the lane; row 1 may be another episode, before the lane's first turn: Â0 = 1 − 2.
    got = advantages(column(1, 5, 1), column(2, 9, 3), column(9, 3, 4), flags(1, 0, 0), flags(0, 0, 0), flags(1, 0, 1))
    assert got == pytest.approx([-1.0, 0.0, 1.6])


def test_gaps_change_nothing_where_there_are_none():
    rng = np.random.default_rng(0)
    shape = (20, 3)
    reward, value, next_value = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    next_value[:-1] = value[1:]
    terminated = rng.random(shape) < 0.1
    truncated = (rng.random(shape) < 0.1) & ~terminated
    next_value[truncated] = 7.0
    valid = np.ones(shape, bool)
    plain = gae(reward, value, next_value, terminated, truncated, valid, gamma=GAMMA, lam=LAM)
    # One more lane with a gap forces the general path; the others must come out the same.
    extra = [np.concatenate([a, a[:, :1]], 1) for a in (reward, value, next_value, terminated, truncated, valid)]
    extra[5][4, 3] = False
    general = gae(*extra, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(general[:, :3], plain, rtol=2e-5, atol=1e-5)


def test_successor_values_replace_the_shifted_ones():
    value = np.array([[1, 2], [3, 4]], np.float32)
    successors = Successors(np.array([0, 1, 1]), np.array([1, 0, 1]), np.zeros((3, 1)))
    got = with_successor_values(value, successors, np.array([10, 20, 30], np.float32))
    np.testing.assert_array_equal(got, [[3, 10], [20, 30]])


def test_normalized_has_zero_mean_and_unit_deviation():
    got = normalized(np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_allclose(got, [-1.2247448, 0, 1.2247448], rtol=1e-5)


def test_explained_variance():
    target = np.array([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.full(3, 2.0), target) == 0.0
    assert explained_variance(np.zeros(3), np.ones(3)) == 0.0


def test_the_accelerator_gives_the_same_advantages():
    rng = np.random.default_rng(0)
    T, L = 37, 5
    reward, value, after = (rng.normal(size=(T, L)).astype(np.float32) for _ in range(3))
    terminated, truncated = (rng.random((T, L)) < 0.1 for _ in range(2))
    goes_on = ~(terminated | truncated)[:-1]
    next_value = after.copy()
    next_value[:-1][goes_on] = value[1:][goes_on]
    columns = (reward, value, next_value, terminated, truncated, np.ones((T, L), bool))
    np.testing.assert_array_equal(
        on_policy_kernels.gae(*columns, gamma=0.97, lam=0.9), gae(*columns, gamma=0.97, lam=0.9)
    )
