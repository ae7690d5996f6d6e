"""Accelerated updates take the reference's steps: metrics, gradients, TD errors, parameters; for every algorithm and view."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.replay_updates import accelerated
from relayrl.algorithms.critics.critic_sight import CriticSight, StateOffer
from relayrl.algorithms.critics.critic_views import CentralView, LocalView
from relayrl.algorithms.critics.state_features import StateFeatures
from relayrl.algorithms.params import DDPGParams, OffPolicyParams, SACParams, TD3Params
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3
from relayrl.algorithms.updates.replay_actor_critic import ReplayActorCritic
from relayrl.compiled import loader
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.policy import Policy
from relayrl.training.replay.joint_replay import GroupTransitions, JointTransitions

pytestmark = pytest.mark.skipif(loader.kernels() is None, reason="the kernels were not built")
TEAMS = {"wolf": 3, "sheep": 1}
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
ONE, SEVERAL = spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3])
CASES: dict[str, tuple[type[ReplayActorCritic], OffPolicyParams, spaces.Space]] = {
    "ddpg": (DDPG, DDPGParams(), BOX),
    "td3": (TD3, TD3Params(), BOX),
    "sac": (SAC, SACParams(), BOX),
    "sac of a given target": (SAC, SACParams(target_entropy=-0.5, init_temperature=0.2), BOX),
    "sac of a fixed temperature": (SAC, SACParams(learns_temperature=False), BOX),
    "sac of choices": (SAC, SACParams(), ONE),
    "sac of several choices": (SAC, SACParams(), SEVERAL),
}
OFFER = StateOffer(spaces.Box(-1, 1, (2,), np.float32))


def build(case: str, view: str, network: NetworkSettings) -> ReplayActorCritic:
    kind, params, space = CASES[case]
    params = params.model_copy(update={"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.05})
    observations, generator = spaces.Box(-np.inf, np.inf, (3,), np.float32), torch.Generator().manual_seed(0)
    policies = {name: Policy(observations, kind.make_head(space, params), network, generator) for name in TEAMS}
    with torch.no_grad():
        for policy in policies.values():
            for parameter in policy.actor_parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    state = StateFeatures(OFFER, normalizes=network.normalize_observations) if view == "state" else None
    sights = dict.fromkeys(TEAMS, CriticSight(observations=view != "state", state=view == "state"))

    def make_view(shapes):
        return LocalView(shapes) if view == "local" else CentralView(shapes, sights, 2)

    return kind(policies, TEAMS, params, torch.Generator().manual_seed(1), make_view, state)


def transitions(case: str, seed: int, *, masked: bool, num_rows: int = 40) -> JointTransitions:
    """Some transitions terminated, some agents were absent, some left, and rows have weights."""
    rng, space = np.random.default_rng(seed), copy.deepcopy(CASES[case][2])
    space.seed(seed)
    groups = {}
    for name, num_agents in TEAMS.items():
        shape = (num_rows, num_agents)
        valid, next_valid = rng.random(shape) < 0.9, rng.random(shape) < 0.8
        masks = [None, None]
        if masked:
            masks = [rng.random((*shape, 4 if space == ONE else 5)) < 0.6 for _ in range(2)]
            for mask in masks:
                mask[..., [0, -1]] = True
        groups[name] = GroupTransitions(
            obs=rng.normal(size=(*shape, 3)).astype(np.float32),
            action=np.stack([space.sample() for _ in range(num_rows * num_agents)]).reshape(*shape, *space.shape),
            reward=rng.normal(size=shape).astype(np.float32),
            next_obs=rng.normal(size=(*shape, 3)).astype(np.float32),
            discount=np.where((rng.random(shape) < 0.25) | ~valid, 0.0, 0.9).astype(np.float32),
            valid=valid,
            next_valid=next_valid,
            mask=masks[0],
            next_mask=masks[1],
        )
    states = rng.uniform(-1, 1, (2, num_rows, 2)).astype(np.float32)
    return JointTransitions(groups, np.arange(num_rows), rng.random(num_rows).astype(np.float32), *states)


def numbers(algorithm: ReplayActorCritic) -> dict[str, torch.Tensor]:
    """Everything that an update changes or leaves behind."""
    found = {}
    for name, learner in algorithm.groups.items():
        modules = {"policy": learner.policy, **learner.modules()}
        for kind, module in modules.items():
            found[f"{name} {kind}"] = torch.cat([p.detach().flatten() for p in module.parameters()])
        for kind, optimizer in learner.optimizers().items():
            found[f"{name} {kind}"] = optimizer.gradient.clone()
        if isinstance(algorithm, SAC):
            found[f"{name} temperature"] = torch.tensor(algorithm.temperature(name))
    return found


def assert_same_steps(case: str, view: str, network: NetworkSettings, *, masked: bool = False) -> None:
    reference, fast = build(case, view, network), build(case, view, network)
    twin = accelerated(fast)
    assert twin is not None
    for seed in range(6):
        data = transitions(case, seed, masked=masked)
        (metrics, errors), (fast_metrics, fast_errors) = reference.update(data), twin.update(data)
        assert metrics == pytest.approx(fast_metrics, rel=2e-4, abs=1e-5)
        np.testing.assert_allclose(fast_errors, errors, rtol=1e-3, atol=1e-5)
        for name, expected in numbers(reference).items():
            torch.testing.assert_close(
                numbers(fast)[name], expected, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert reference.rng.bit_generator.state == fast.rng.bit_generator.state
    assert reference.num_updates == fast.num_updates == 6


@pytest.mark.parametrize("view", ["local", "central", "state"])
@pytest.mark.parametrize("case", CASES)
def test_an_accelerated_update_is_the_references(case, view):
    assert_same_steps(case, view, NetworkSettings(hidden_sizes=(16, 16), activation=Activation.RELU))


@pytest.mark.parametrize("view", ["local", "central", "state"])
def test_so_it_is_with_normalised_observations(view):
    assert_same_steps("sac", view, NetworkSettings(hidden_sizes=(16,), normalize_observations=True))


@pytest.mark.parametrize("case", ["sac of choices", "sac of several choices"])
def test_so_it_is_under_masks(case):
    assert_same_steps(case, "central", NetworkSettings(hidden_sizes=(16, 16)), masked=True)


def test_the_state_of_one_continues_in_the_other():
    network = NetworkSettings(hidden_sizes=(16,))
    first, second = build("sac", "central", network), build("sac", "central", network)
    twin = accelerated(first)
    for seed in range(3):
        twin.update(transitions("sac", seed, masked=False))
    for name, learner in first.groups.items():
        second.groups[name].policy.load_state_dict(learner.policy.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    data = transitions("sac", 7, masked=False)
    assert second.update(data)[0] == pytest.approx(twin.update(data)[0], rel=2e-4, abs=1e-5)
