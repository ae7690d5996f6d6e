"""Rollouts in one launch are those of acting and stepping one step after the other."""

import pytest
import torch

from relayrl.accelerator.gpu.environments.fused_rollouts import fused_rollout, known_rollout
from relayrl.accelerator.gpu.fused_update import known_update
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.engines.device.resident_rollout import ResidentRollout
from relayrl.envs.native.native_registry import make
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic

PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)
NUM_ENVS, NUM_STEPS = 17, 4
COLUMNS = ("obs", "action", "logp", "reward", "terminated", "truncated", "next_obs", "last_obs")


def _parts(name, options, normalize):
    env = make(name, **options, device="cpu:0")
    env.init_num_envs(NUM_ENVS)
    env.reset(seed=5)
    (group,) = env.groups.values()
    settings = NetworkSettings(hidden_sizes=(8, 8), normalize_observations=normalize)
    policy = ActorCritic(group.observation_space, group.action_space, settings, torch.Generator().manual_seed(0))
    if normalize:
        policy.normalizer.update(
            torch.randn(50, policy.encoder.num_features, generator=torch.Generator().manual_seed(1))
        )
    optimizers = FlatAdam(policy.actor_parameters(), 1e-3, 0.5), FlatAdam(policy.critic_parameters(), 1e-3, 0.5)
    update = known_update(policy, PPO, *optimizers, Precision.NEAR_FLOAT32)
    rollout = ResidentRollout(group, env.env_ids, NUM_STEPS, env.blueprint.max_episode_steps, torch.device("cpu"))
    return env, update, rollout


def _by_steps(env, update, rollout, noise):
    (name,) = env.groups
    for t in range(NUM_STEPS):
        obs = env.build_observation().groups[name].obs.flatten(0, 1)
        rollout.obs[t].copy_(obs)
        update.act_into(obs, noise[t], (rollout.action[t], rollout.logp[t]))
        taken = rollout.action[t]
        step = env.step_dense({name: taken.reshape(rollout.num_envs, rollout.num_agents, *taken.shape[1:])})
        rollout.finish_row(t, step.groups[name], step.final[name].flatten(0, 1))
    rollout.last_obs.copy_(env.build_observation().groups[name].obs.flatten(0, 1))


@pytest.mark.parametrize(
    ("name", "options", "normalize"),
    [
        ("CartPole", {"max_episode_steps": 3}, False),
        ("Pendulum", {"max_episode_steps": 3}, True),
        ("simple_spread", {"max_cycles": 3}, False),
    ],
)
def test_fills_columns_as_steps_do(name, options, normalize):
    own, reference = _parts(name, options, normalize), _parts(name, options, normalize)
    fill = known_rollout(own[0], own[1])
    assert fill is not None
    g = torch.Generator().manual_seed(2)
    _, width = own[1].policy.head.noise
    lanes = own[2].num_lanes
    for _ in range(2):
        draw = torch.randn if name == "Pendulum" else torch.rand
        noise = draw(NUM_STEPS, lanes, width, generator=g)
        fill(own[2], noise)
        _by_steps(*reference, noise)
        for column in COLUMNS:
            ours, theirs = getattr(own[2], column), getattr(reference[2], column)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, c=column: f"{c}: {m}")
        assert own[2].truncated.any()
    ours, theirs = own[0].get_state(), reference[0].get_state()
    assert all((ours[key] == theirs[key]).all() for key in ("stream_key", "episode", "elapsed_steps"))


def test_other_parts_are_left_to_the_reference():
    env, update, *_ = _parts("CartPole", {}, False)
    assert fused_rollout(env, update) is None  # not on a CUDA device
    assert known_rollout(env, object()) is None
    update.policy.encoder.register_forward_hook(lambda *_: None)
    assert known_rollout(env, update) is None
