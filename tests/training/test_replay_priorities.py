"""Prioritised replay: draws against their probabilities, importance weights, and where priorities come from and go."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import GAMMA, running

from relayrl.algorithms.params import OffPolicyParams
from relayrl.compiled import loader
from relayrl.training.replay.joint_replay import JointReplay, PrioritySums


def prioritised(num_rows: int, exponent: float = 1.0, capacity: int = 16) -> JointReplay:
    replay = JointReplay(capacity, 1, priority_exponent=exponent)
    replay.add({"agent": running(num_rows)})
    return replay


def drawn_shares(replay: JointReplay, num_draws: int = 50_000) -> np.ndarray:
    """How often each row is drawn, one at a time so that draws are independent."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([replay.sample(50, rng, gamma=GAMMA).rows for _ in range(num_draws // 50)])
    return np.bincount(rows, minlength=replay.capacity) / num_draws


@pytest.mark.parametrize("exponent", [0.6, 1.0])
def test_draws_follow_priorities(exponent):
    replay = prioritised(6, exponent)
    errors = np.array([0.0, -1.0, 2.0, -3.0, 4.0, 10.0])
    replay.set_priorities(np.arange(6), errors)
    expected = (np.abs(errors) + 1e-6) ** exponent
    expected /= expected.sum()
    shares = drawn_shares(replay)
    assert shares[6:].sum() == 0
    np.testing.assert_allclose(shares[:6], expected, atol=0.006)


def test_importance_weights_undo_the_draws():
    replay = prioritised(4)
    replay.set_priorities(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    got = replay.sample(1000, np.random.default_rng(0), gamma=GAMMA, correction=1.0)
    # (N p)⁻¹ = 10 / (4 · error), over the largest: 1 / error.
    np.testing.assert_allclose(got.weight, 1.0 / (got.rows + 1.0), rtol=1e-4)
    half = replay.sample(1000, np.random.default_rng(0), gamma=GAMMA, correction=0.5)
    np.testing.assert_allclose(half.weight, (1.0 / (half.rows + 1.0)) ** 0.5, rtol=1e-4)


def test_uniform_replay_weighs_all_alike_and_ignores_errors():
    replay = JointReplay(16, 1)
    replay.add({"agent": running(4)})
    replay.set_priorities(np.arange(4), np.array([1.0, 0.0, 0.0, 0.0]))
    got = replay.sample(64, np.random.default_rng(0), gamma=GAMMA, correction=1.0)
    assert (got.weight == 1.0).all()
    assert set(got.rows.tolist()) == {0, 1, 2, 3}


def test_new_rows_come_with_the_largest_priority_so_far():
    replay = prioritised(4)
    replay.set_priorities(np.arange(4), np.array([1.0, 1.0, 1.0, 7.0]))
    replay.add({"agent": running(1)})
    np.testing.assert_allclose(drawn_shares(replay)[:5], np.array([1, 1, 1, 7, 7]) / 17, atol=0.006)


def test_overwritten_rows_lose_their_priority():
    replay = prioritised(4, capacity=4)
    replay.set_priorities(np.arange(4), np.array([1e-9, 1e-9, 1e-9, 1e-9]))
    replay.add({"agent": running(1, first=5)})
    assert (replay.sample(100, np.random.default_rng(0), gamma=GAMMA).rows == 0).mean() > 0.99


def test_of_a_row_named_twice_the_last_priority_counts():
    sums = PrioritySums(4)
    sums.set(np.array([0, 1, 0]), np.array([5.0, 1.0, 3.0]))
    rows, shares = sums.draw(400, np.random.default_rng(0))
    assert (rows == 0).sum() == 300
    assert sorted(set(shares.tolist())) == [0.25, 0.75]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    size=st.integers(1, 40),
    writes=st.lists(st.lists(st.tuples(st.integers(0, 39), st.floats(1e-3, 1e3)), min_size=1), min_size=1, max_size=5),
)
def test_priority_sums_draw_every_row_by_its_share(size, writes):
    sums, reference = PrioritySums(size), np.zeros(size)
    for write in writes:
        rows, priorities = np.array([w[0] % size for w in write]), np.array([w[1] for w in write])
        sums.set(rows, priorities)
        for row, priority in zip(rows, priorities, strict=True):
            reference[row] = priority
    num_draws = 2000
    rows, shares = sums.draw(num_draws, np.random.default_rng(0))
    np.testing.assert_allclose(shares, reference[rows] / reference.sum(), rtol=1e-9)
    # One draw from each of the equal strata: a row's count is within two of its expectation.
    counts = np.bincount(rows, minlength=size)
    assert (np.abs(counts - num_draws * reference / reference.sum()) <= 2).all()


def test_the_correction_moves_from_its_first_value_to_its_last_over_the_run():
    params = OffPolicyParams(priority_correction=0.4, priority_correction_end=1.0)
    assert [params.correction_at(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.7, 1.0])
    assert OffPolicyParams(priority_correction_end=0.4).correction_at(0.9) == pytest.approx(0.4)


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_kernels_and_numpy_give_the_same_tree_and_the_same_draws(size, monkeypatch):
    results = []
    for asked in ("", loader.OFF):
        monkeypatch.setenv(loader.VARIABLE, asked)
        rng, sums = np.random.default_rng(0), PrioritySums(size)
        drawn = []
        for _ in range(20):
            where = rng.integers(size, size=30)
            sums.set(where, rng.random(30) ** 4)
            drawn.append(sums.draw(40, rng))
        results.append((sums._sums, drawn))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    for compiled, plain in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(compiled, plain)


def test_kernels_refuse_rows_that_the_tree_does_not_have():
    if loader.kernels() is None:
        pytest.skip("no kernels in this installation")
    sums = PrioritySums(8)
    with pytest.raises(IndexError, match="does not have"):
        sums.set(np.array([0, 16]), np.ones(2))
    assert not sums._sums.any()
