"""Episodes of a rollout that kernels add up are those of the reference, as are the draws that begin episodes."""

import numpy as np
import pytest
import torch

from relayrl.accelerator.gpu.environments.episode_kernels import add_episodes
from relayrl.accelerator.gpu.environments.stream_kernels import fused_uniforms
from relayrl.engines.device.ended_episodes import CAPACITY, ResidentEpisodes
from relayrl.engines.device.resident_rollout import ResidentRollout
from relayrl.envs.native.array_namespace import namespace_of
from relayrl.envs.native.native_registry import make
from relayrl.envs.native.random_streams import uniforms

NUM_STEPS = 9


@pytest.mark.parametrize(("name", "num_envs"), [("CartPole", 5), ("CartPole", 300), ("simple_spread", 33)])
def test_episodes_are_those_of_the_reference(name, num_envs):
    env = make(name, device="cpu:0")
    env.init_num_envs(num_envs)
    (group,) = env.groups.values()
    rollout = ResidentRollout(group, env.env_ids, NUM_STEPS, 100, torch.device("cpu"))
    own, reference = (ResidentEpisodes(env.groups, num_envs, torch.device("cpu")) for _ in range(2))
    own._add_by_kernels = add_episodes
    g = torch.Generator().manual_seed(1)
    num_ended = 0
    for share in (0.0, 0.3, 0.9):
        shape = (NUM_STEPS, num_envs)
        rollout.reward.copy_(torch.randn(rollout.reward.shape, generator=g))
        for flags in (rollout.terminated, rollout.truncated):
            per_env = torch.rand(shape, generator=g) < share / 2
            flags.copy_(per_env[..., None].expand(*shape, group.num_agents).flatten(1))
        num_ended += int(rollout.ended.sum()) // group.num_agents
        for episodes in (own, reference):
            episodes.add({group.name: rollout})
    ours, theirs = own.state_dict(), reference.state_dict()
    assert ours["count"] == theirs["count"] == num_ended > 10
    torch.testing.assert_close(ours["sums"], theirs["sums"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours["ring"][:CAPACITY], theirs["ring"][:CAPACITY], rtol=1e-9, atol=1e-9)
    assert (num_ended > CAPACITY) == (num_envs == 300)  # then the ring has the newest alone


def test_draws_are_the_same_bits():
    rng = np.random.default_rng(0)
    keys, episodes = (torch.from_numpy(rng.integers(-(2**62), 2**62, 70)) for _ in range(2))
    xp = namespace_of("cpu:0")
    assert fused_uniforms(xp, keys, episodes, 3).equal(uniforms(xp, keys, episodes, 3))
    assert fused_uniforms(xp, keys, episodes, 0).shape == (0, 70)
