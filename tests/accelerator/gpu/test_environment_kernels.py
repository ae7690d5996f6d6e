"""Steps by kernels are those of the native environments: the same states, flags, final observations and beginnings."""

import numpy as np
import pytest
import torch

from relayrl.accelerator.gpu.environments.fused_steps import fused_step, known_step
from relayrl.envs.native.native_registry import make

NUM_ENVS = 34
OPTIONS = {
    "CartPole": [{"max_episode_steps": 4}, {"sutton_barto_reward": True, "max_episode_steps": 6}],
    "Pendulum": [{"max_episode_steps": 5}],
    "simple_spread": [{"max_cycles": 3}, {"N": 2, "terminate_on_success": True, "max_cycles": 5, "local_ratio": 0.3}],
}


def _pair(name, options, num_envs):
    made = [make(name, **options, device="cpu:0") for _ in range(2)]
    for env in made:
        env.init_num_envs(num_envs)
        env.reset(seed=11)
    return made


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, several in OPTIONS.items() for options in several]
)
def test_steps_as_the_reference(name, options):
    own, reference = _pair(name, options, NUM_ENVS)
    step = known_step(own)
    assert step is not None
    (group,) = own.groups
    space, shape = own.groups[group].action_space, (NUM_ENVS, own.groups[group].num_agents)
    rng = np.random.default_rng(3)
    ended = 0
    for _ in range(8):
        if name == "Pendulum":
            action = torch.from_numpy(rng.uniform(-2.5, 2.5, (*shape, 1)).astype(np.float32))
        else:
            action = torch.from_numpy(rng.integers(space.n, size=shape))
        found, expected = step({group: action}), reference.step_dense({group: action})
        for field in ("obs", "reward", "terminated", "truncated"):
            ours, theirs = (getattr(s.groups[group], field) for s in (found, expected))
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6, msg=lambda m, f=field: f"{f}: {m}")
        torch.testing.assert_close(found.final[group], expected.final[group], rtol=1e-5, atol=2e-6)
        assert torch.equal(found.over, expected.over)
        ended += int(found.over.sum())
    assert ended >= 2
    ours, theirs = own.get_state(), reference.get_state()
    for field in ("stream_key", "episode", "elapsed_steps"):
        assert np.array_equal(ours[field], theirs[field])
    later = [
        env.step_dense({group: action}) for env in (own, reference)
    ]  # the reference goes on from the kernel's arrays
    torch.testing.assert_close(later[0].final[group], later[1].final[group], rtol=1e-5, atol=1e-5)


def test_beginnings_are_the_same_bits():
    own, reference = _pair("CartPole", {"max_episode_steps": 1}, 33)
    step = known_step(own)
    (group,) = own.groups
    action = {group: torch.zeros(33, 1, dtype=torch.int64)}
    assert torch.equal(step(action).groups[group].obs, reference.step_dense(action).groups[group].obs)


def test_other_worlds_are_left_to_the_reference():
    own, other = _pair("CartPole", {}, 4)
    assert fused_step(own) is None  # not on a CUDA device
    other.worlds.advance = other.worlds.advance
    assert known_step(other) is None
    for name, options in (
        ("Acrobot", {}),
        ("CartPole", {"dtype": "float64"}),
        ("simple_spread", {"num_agent_neighbors": 1}),
    ):
        assert known_step(_pair(name, options, 4)[0]) is None
