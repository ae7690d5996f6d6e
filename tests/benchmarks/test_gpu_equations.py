"""The environments of the programs beside which we measure are ours: the same motion, rewards and observations."""

import numpy as np
import pytest
import spread_equations as equations
import torch
from torch_ppo_continuous import Regulators
from torch_ppo_image import MovingSquares

from relayrl.bench.gpu.synthetic_environments import GROUP, moving_square, regulator
from relayrl.envs import native


def test_spread_equations_are_the_native_environments():
    num_envs = 64
    env = native.make("simple_spread", dtype="float64")
    env.init_num_envs(num_envs)
    (group,) = env.groups
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    touches = 0
    for _ in range(equations.MAX_STEPS - 1):
        before = env.get_state()
        position, landmark = np.split(before["position"], [equations.NUM_AGENTS], 1)
        action = rng.integers(equations.NUM_MOVES, size=(num_envs, equations.NUM_AGENTS))
        step = env.step({group: action}).groups[group]
        position, velocity = equations.advance(np, position, before["velocity"], action)
        reward = equations.reward(np, position, landmark)
        touches += int((reward[:, 0] != reward[:, 1]).sum())  # the team's part is equal: one of them touched somebody
        np.testing.assert_allclose(step.reward, reward, rtol=0, atol=1e-5)
        seen = equations.observe(np, position, velocity, landmark)
        np.testing.assert_allclose(step.obs, seen, rtol=0, atol=1e-5)
    assert step.obs.shape[-1] == equations.NUM_OBSERVATIONS
    assert touches > 10


@pytest.mark.parametrize(
    ("make", "theirs", "name"), [(regulator, Regulators, "deviation"), (moving_square, MovingSquares, "square")]
)
def test_the_torch_programs_environments_are_the_synthetic_ones(make, theirs, name):
    env = make(device="cpu:0")
    env.init_num_envs(16)
    seen = env.reset(seed=0).groups[GROUP].obs[:, 0]
    other = theirs(16, torch.device("cpu"))
    getattr(other, "square", other.observation).copy_(torch.from_numpy(env.get_state()[name]))
    generator = torch.Generator().manual_seed(0)
    ended = torch.zeros(16, dtype=torch.bool)
    for _ in range(20):
        if other.action_dtype == torch.float32:
            action = 2 * torch.randn(16, *other.action_shape, generator=generator)
        else:
            action = torch.randint(4, (16,), generator=generator)
        step = env.step({GROUP: action[:, None]})
        reward, over = other.step(action)
        assert torch.equal(over[~ended], step.episode_over[~ended])
        ended |= over
        torch.testing.assert_close(reward[~ended], step.groups[GROUP].reward[~ended, 0])
        torch.testing.assert_close(other.observation[~ended], step.groups[GROUP].obs[~ended, 0])
    assert seen.shape == other.observation.shape
    assert not ended.all()
