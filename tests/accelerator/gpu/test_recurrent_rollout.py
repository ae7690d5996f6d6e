"""Rollouts of policies with a GRU in one launch are those of acting and stepping one step after the other."""

import pytest
import torch

from relayrl.accelerator.gpu.environments.fused_rollouts import known_rollout
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent.fused_recurrent import fused_recurrent_update
from relayrl.accelerator.gpu.recurrent.recurrent_rollouts import recurrent_rollout
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.engines.device.resident_memory import ResidentMemory
from relayrl.engines.device.resident_rollout import ResidentRollout
from relayrl.envs.native.native_registry import make
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.recurrent_policy import RecurrentActorCritic

PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)
NUM_ENVS, NUM_STEPS = 17, 5
COLUMNS = ("obs", "action", "logp", "reward", "terminated", "truncated", "next_obs", "last_obs")


def _parts(name, options, normalize, sequence_length, precision=Precision.TF32, size=20):
    env = make(name, **options, device="cpu:0")
    env.init_num_envs(NUM_ENVS)
    env.reset(seed=5)
    (group,) = env.groups.values()
    memory = MemorySettings(kind="gru", size=size, sequence_length=sequence_length)
    settings = NetworkSettings(hidden_sizes=(8, 12), normalize_observations=normalize, memory=memory)
    policy = RecurrentActorCritic(
        group.observation_space, group.action_space, settings, torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    if normalize:
        moments = torch.randn(50, policy.encoder.num_features, generator=torch.Generator().manual_seed(1))
        policy.normalizer.update(moments)
    optimizers = FlatAdam(policy.actor_parameters(), 1e-3, 0.5), FlatAdam(policy.critic_parameters(), 1e-3, 0.5)
    update = fused_recurrent_update(policy, PPO, *optimizers, precision)
    rollout = ResidentRollout(group, env.env_ids, NUM_STEPS, env.blueprint.max_episode_steps, torch.device("cpu"))
    rollout.memory = ResidentMemory(policy, NUM_STEPS, rollout.num_lanes, "cpu")
    return env, update, rollout


def _steps_like(env, update, rollout, noise, found):
    """What the reference remembers and says of the actions that were taken, of which some fall on the other side of a draw."""
    (name,) = env.groups
    worst = 0.0
    for t in range(NUM_STEPS):
        obs = env.build_observation().groups[name].obs.flatten(0, 1)
        torch.testing.assert_close(found.obs[t], obs, rtol=1e-4, atol=1e-5)
        rollout.memory.begin_row(t)
        memory = rollout.memory.actor
        out = torch.empty_like(found.action[t]), torch.empty_like(found.logp[t])
        update.act_remembering(obs, noise[t], memory, out)
        same = out[0] == found.action[t]
        if found.action.is_floating_point():
            torch.testing.assert_close(found.action[t], out[0], rtol=5e-3, atol=5e-3)
        else:
            assert same.float().mean() > 0.9
            worst = max(worst, float((found.logp[t] - out[1]).abs()[same].max()))
        taken = found.action[t]
        step = env.step_dense({name: taken.reshape(rollout.num_envs, rollout.num_agents, *taken.shape[1:])})
        rollout.finish_row(t, step.groups[name], step.final[name].flatten(0, 1))
        rollout.memory.end_row(rollout.terminated[t] | rollout.truncated[t])
    rollout.last_obs.copy_(env.build_observation().groups[name].obs.flatten(0, 1))
    assert worst < 5e-3


@pytest.mark.parametrize(
    ("name", "options", "normalize", "sequence_length"),
    [
        ("CartPole", {"max_episode_steps": 3}, True, 2),
        ("Pendulum", {"max_episode_steps": 3}, False, 8),
        ("simple_spread", {"max_cycles": 3}, False, 8),
    ],
)
def test_fills_columns_and_moves_the_memory_on_as_steps_do(name, options, normalize, sequence_length):
    own, reference = (_parts(name, options, normalize, sequence_length) for _ in range(2))
    fill = recurrent_rollout(own[0], own[1])
    assert fill is not None
    g = torch.Generator().manual_seed(2)
    _, width = own[1].policy.head.noise
    for _ in range(2):
        draw = torch.randn if name == "Pendulum" else torch.rand
        noise = draw(NUM_STEPS, own[2].num_lanes, width, generator=g)
        fill(own[2], noise)
        _steps_like(*reference, noise, own[2])
        for column in ("reward", "terminated", "truncated", "next_obs", "last_obs"):
            ours, theirs = getattr(own[2], column), getattr(reference[2], column)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, c=column: f"{c}: {m}")
        assert own[2].truncated.any()
        for column in ("actor", "before_rows"):
            ours, theirs = (getattr(part[2].memory, column) for part in (own, reference))
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
        assert own[2].memory.actor.any()
    ours, theirs = own[0].get_state(), reference[0].get_state()
    assert all((ours[key] == theirs[key]).all() for key in ("stream_key", "episode", "elapsed_steps"))


def test_other_parts_are_left_to_the_reference():
    env, update, _ = _parts("CartPole", {}, False, 8)
    assert recurrent_rollout(env, update) is not None
    assert known_rollout(env, update) is None
    assert recurrent_rollout(env, object()) is None
    assert recurrent_rollout(env, _parts("CartPole", {}, False, 8, precision=None)[1]) is None
    update.policy.encoder.register_forward_hook(lambda *_: None)
    assert recurrent_rollout(env, update) is None
