"""The synthetic environments of the GPU benchmark keep the contract, on NumPy and on torch, and do what they say."""

import numpy as np
import pytest

from relayrl.bench.gpu.synthetic_environments import GROUP, SIDE, moving_square, regulator
from relayrl.testing import check_environment


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("make", [regulator, moving_square])
def test_the_environment_contract_is_kept(make, device):
    check_environment(lambda num_envs: make(max_episode_steps=6, device=device), num_steps=20).raise_if_failed()


def test_forces_move_the_regulators_state():
    env = regulator()
    env.init_num_envs(2)
    env.reset(seed=0)
    deviation = np.zeros((2, 17), np.float32)
    deviation[0, 16] = 1.0  # which is before the first, too
    env.set_state({**env.get_state(), "deviation": deviation})
    force = np.zeros((2, 1, 6), np.float32)
    force[1, 0, 5] = 5.0  # of which 1 counts, for the states 5 and 11
    step = env.step({GROUP: force}).groups[GROUP]
    expected = np.zeros((2, 17))
    expected[0, [16, 0]], expected[1, [5, 11]] = (0.9, 0.1), 0.1
    np.testing.assert_allclose(step.obs[:, 0], expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(step.reward[:, 0], [-0.82 / 17, -0.02 / 17], rtol=1e-5)


def test_a_square_is_drawn_where_it_is_and_ends_in_the_middle():
    env = moving_square()
    env.init_num_envs(2)
    env.reset(seed=0)
    places = np.zeros((2, 4, 2), np.float32)  # [B, frames, 2]
    places[0], places[1] = (20, 70), (SIDE / 2 - 9, SIDE / 2)
    env.set_state({**env.get_state(), "square": places})
    step = env.step({GROUP: np.array([[1], [1]])})  # both move down, by four pixels
    group = step.groups[GROUP]
    assert step.episode_over.tolist() == [False, True]
    np.testing.assert_allclose(group.reward[:, 0], [-(18 + 28) / SIDE, 1 - 5 / SIDE], rtol=1e-6)
    old, new = group.obs[0, 0, :, :, 2], group.obs[0, 0, :, :, 3]
    assert [np.unique(axis).tolist() for axis in np.nonzero(old)] == [list(range(15, 26)), list(range(65, 76))]
    assert [np.unique(axis).tolist() for axis in np.nonzero(new)] == [list(range(19, 30)), list(range(65, 76))]
    assert group.obs.dtype == np.uint8
    assert set(np.unique(group.obs)) == {0, 255}
