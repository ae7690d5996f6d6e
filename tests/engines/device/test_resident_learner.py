"""Learning on a device computes what learning on the host computes of the same rollout; torch on the CPU stands in for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from relayrl.algorithms.updates.recurrent_update import remembered
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.engines.device.resident_rollout import ResidentRollout
from relayrl.engines.device.resident_run import ResidentParts, build_resident
from relayrl.engines.settings.run_settings import build_run_settings

NUM_STEPS, NUM_ENVS, LIMIT = 30, 5, 11
CASES = [
    ("native:CartPole", "ppo", {"params.value_clip": 0.2}),
    ("native:CartPole", "ppo", {"params.target_kl": 1e-9}),
    ("native:Pendulum", "ppo", {"params.entropy_coef": 0.01}),
    ("native:simple_spread", "ippo", {}),
    ("native:simple_spread", "mappo", {}),
    ("native:simple_speaker_listener", "mappo", {"params.max_grad_norm": None}),
]
SHORT_GRU, LONG_GRU, SHORT_LSTM, LONG_LSTM = (
    {"network.memory": {"kind": kind, "size": 7, "sequence_length": length}, "network.hidden_sizes": (9, 8)}
    for kind in ("gru", "lstm")
    for length in (4, 64)
)
"""Sequences that are cut inside of episodes and rollouts, and such that only ends of episodes and rollouts cut."""
IMAGES = "relayrl.bench.gpu.synthetic_environments:moving_square"
RECURRENT_CASES = [
    ("native:CartPole", "ppo", SHORT_LSTM),
    ("native:CartPole", "ppo", {**LONG_GRU, "params.target_kl": 1e-9}),
    ("native:Pendulum", "ppo", {**SHORT_GRU, "params.entropy_coef": 0.01, "params.value_clip": 0.2}),
    ("native:simple_spread", "ippo", SHORT_GRU),
    ("native:simple_spread", "mappo", SHORT_LSTM),
    ("native:simple_spread", "mappo", LONG_GRU),
    ("native:simple_spread", "mappo", {**LONG_GRU, "environment.options.max_cycles": 10}),  # ends with the rollout
    ("native:simple_speaker_listener", "mappo", LONG_LSTM),
    (
        "native:simple_speaker_listener",
        "ippo",
        {"behaviors.speaker_0.network.memory": {"size": 5, "sequence_length": 3}},
    ),
    (IMAGES, "ppo", {**SHORT_GRU, "network.encoder_size": 6, "network.normalize_observations": False}),
]


def _parts(env: str, algo: str, extra: dict[str, Any]) -> ResidentParts:
    limit = "max_cycles" if "simple" in env else "max_episode_steps"
    settings: dict[str, Any] = {
        "device": "cpu:0",
        f"environment.options.{limit}": LIMIT,
        "environment.num_envs": NUM_ENVS,
        "trainer.time_horizon": NUM_STEPS,
        "network.normalize_observations": True,
        "params.normalize_returns": True,
        "params.num_minibatches": 1,
        "params.train_pi_iters": 3,
        "params.train_vf_iters": 4,
        "params.target_kl": None,
        **extra,
    }
    parts = build_resident(build_run_settings(env, None, {"algo": algo}, list(settings.items())))
    assert isinstance(parts, ResidentParts)
    return parts


class HostMemory:
    """What the host's collector would have recorded: found by its policy's own steps, from rollout to rollout."""

    def __init__(self, policy: Any, num_lanes: int) -> None:
        self._policy, self._carried = policy, torch.zeros(num_lanes, policy.memory_width)
        self._first_step = np.zeros(num_lanes, np.int64)

    @torch.no_grad()
    def recorded(self, rollout: Rollout) -> Rollout:
        policy, (num_steps, num_lanes) = self._policy, rollout.reward.shape
        if not policy.has_memory:
            return rollout
        features = policy.features(torch.from_numpy(rollout.obs).flatten(0, 1))
        networks = [policy.actor] if policy.is_central else [policy.actor, policy.critic]
        parts = zip(networks, policy.split(self._carried), strict=False)
        found = [remembered(network, rollout, network.hidden(features), first) for network, first in parts]
        before, self._carried = (torch.cat(own, -1) for own in zip(*found, strict=True))
        memory, first_step = before.view(num_steps, num_lanes, -1).numpy(), self._first_step
        self._first_step = np.where(rollout.ended[-1], 0, first_step + num_steps)
        return replace(rollout, memory=memory, first_step=first_step)


def _on_host(rollout: ResidentRollout, header: LaneHeader) -> Rollout:
    """The same columns as the host's collector has them."""
    obs = rollout.next_obs.numpy()
    terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
    needs = terminated | truncated
    needs[-1] = True
    step, lane = np.nonzero(needs)
    followed = [obs[t, i] if truncated[t, i] else rollout.last_obs[i].numpy() for t, i in zip(step, lane, strict=True)]
    shape, lanes = terminated.shape, terminated.shape[1]
    return Rollout(
        header,
        rollout.obs.numpy().copy(),
        rollout.action.numpy().copy(),
        rollout.reward.numpy().copy(),
        terminated.copy(),
        truncated.copy(),
        np.ones(shape, bool),
        np.zeros(shape, bool),
        np.zeros(shape, np.int64),
        np.zeros(lanes, np.int64),
        np.zeros(lanes, np.int64),
        Successors(step, lane, np.array(followed)),
        logp=rollout.logp.numpy().copy(),
    )


@pytest.mark.parametrize(("env", "algo", "extra"), CASES + RECURRENT_CASES)
def test_updates_equal_those_of_the_host(env: str, algo: str, extra: dict[str, Any]) -> None:
    if env == IMAGES:
        extra = {**extra, "environment.options.device": "cpu:0"}
    resident, host = _parts(env, algo, extra), _parts(env, algo, extra)
    memories = {
        name: HostMemory(host.policies[name], NUM_ENVS * group.num_agents) for name, group in host.env.groups.items()
    }
    num_truncated = 0
    for _ in range(3):
        rollouts = resident.collector.fill(NUM_STEPS)  # type: ignore[attr-defined]
        num_truncated += sum(int(r.truncated.sum()) for r in rollouts.values())
        columns = {}
        for name, rollout in rollouts.items():
            group = host.env.groups[name]
            spaces = group.observation_space, group.action_space
            there = _on_host(rollout, LaneHeader(name, host.env.env_ids, group.agent_ids, *spaces))
            columns[name] = memories[name].recorded(there)
        host.trainer.receive(columns)
        expected = host.trainer.advance()
        for name, learner in resident.resident_learners.items():
            learner.learn(name, rollouts)
            found = learner.fetch_metrics()
            prefix = "" if len(rollouts) == 1 else f"{name}/"
            for key, number in found.items():
                assert number == pytest.approx(expected[prefix + key], rel=2e-3, abs=2e-5), key
        for name, policy in resident.policies.items():
            own, other = policy.state_dict(), host.policies[name].state_dict()
            for key, tensor in own.items():
                torch.testing.assert_close(tensor, other[key], rtol=1e-3, atol=2e-5, msg=lambda m, k=key: f"{k}: {m}")
    assert num_truncated > 0, "nothing was bootstrapped"


def test_actions_are_drawn_by_their_probabilities() -> None:
    parts = _parts("native:CartPole", "ppo", {})
    (learner,) = parts.resident_learners.values()
    features = torch.zeros(40_000, 4)
    noise = torch.rand(40_000, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        last = learner.algorithm.policy.actor.linears()[-1]
        last.bias.copy_(torch.tensor([0.0, 1.0]))
    action, logp = learner.update.act(features, noise)
    probability = float(logp[action == 1][0].exp())
    assert probability == pytest.approx(1 / (1 + np.exp(-1.0)), rel=1e-4)
    assert float(action.float().mean()) == pytest.approx(probability, abs=0.01)
