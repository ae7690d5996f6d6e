"""From settings and an environment to the parts of a run: policies, the actors that act with them, and their trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from relayrl.algorithms.critic_views import CentralView, LocalView
from relayrl.algorithms.joint_observations import central_width
from relayrl.algorithms.off_policy import OffPolicyAlgorithm
from relayrl.algorithms.on_policy import OnPolicyAlgorithm
from relayrl.algorithms.params import (
    DDPGParams,
    OffPolicyParams,
    OnPolicyParams,
    PPOParams,
    REINFORCEParams,
    SACParams,
    TD3Params,
)
from relayrl.algorithms.ppo import PPO
from relayrl.algorithms.registry import algorithm
from relayrl.algorithms.reinforce import REINFORCE
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3, exploration_noise
from relayrl.engines.plugins import network_kernels
from relayrl.engines.run_settings import RunSettings
from relayrl.engines.seeding import Stream, stream_seed
from relayrl.envs.contract import AgentGroup, VectorEnvironment
from relayrl.errors import ConfigError
from relayrl.models.action_head import ActionHead
from relayrl.models.actor import Actor
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.box_heads import DeterministicHead, SquashedGaussianHead
from relayrl.models.head_registry import likelihood_head
from relayrl.models.live_actor import live_actor
from relayrl.models.networks import ObservationEncoder
from relayrl.models.policy import Policy
from relayrl.models.warmup_actor import WarmupActor
from relayrl.training.off_policy import OffPolicyTrainer
from relayrl.training.on_policy import OnPolicyTrainer
from relayrl.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a run that depend on its algorithm."""

    policies: dict[str, Policy]
    actors: dict[str, Actor]
    trainer: Trainer
    rollout_steps: int  # steps of each world per rollout


def assemble(settings: RunSettings, env: VectorEnvironment) -> Assembly:
    """Build policies, actors and trainer for the environment's groups."""
    if isinstance(settings.params, OnPolicyParams):
        return _on_policy(settings, env)
    if isinstance(settings.params, OffPolicyParams):
        return _off_policy(settings, settings.params, env)
    raise ConfigError(f"{type(settings.params).__name__} belong to no algorithm of this engine")


def _generator(settings: RunSettings, stream: Stream, index: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(settings.seed, stream, index))


def _on_policy(settings: RunSettings, env: VectorEnvironment) -> Assembly:
    policies: dict[str, Policy] = {}
    algorithms: dict[str, OnPolicyAlgorithm] = {}
    make = _on_policy_algorithm(settings)
    is_central = algorithm(settings.algo).is_central
    num_agents = {name: group.num_agents for name, group in env.groups.items()}
    num_features = {name: ObservationEncoder(g.observation_space).num_features for name, g in env.groups.items()}
    for i, (name, group) in enumerate(env.groups.items()):
        generator = _generator(settings, Stream.INITIALISATION, i)
        width = central_width(num_features, num_agents, name) if is_central else None
        network = settings.network_of(name)
        kernels = network_kernels(network)
        policy = ActorCritic(group.observation_space, group.action_space, network, generator, width, kernels)
        policies[name] = policy
        algorithms[name] = make(name, policy, np.random.default_rng(stream_seed(settings.seed, Stream.LEARNING, i)))
    actors = {name: live_actor(policy) for name, policy in policies.items()}
    trainer = OnPolicyTrainer(algorithms, settings.trainer.max_steps, is_central=is_central)
    return Assembly(policies, actors, trainer, settings.trainer.time_horizon)


def _on_policy_algorithm(
    settings: RunSettings,
) -> Callable[[str, ActorCritic, np.random.Generator], OnPolicyAlgorithm]:
    def make(group: str, policy: ActorCritic, rng: np.random.Generator) -> OnPolicyAlgorithm:
        params = settings.params_of(group)
        if isinstance(params, PPOParams):
            return PPO(policy, params, rng)
        assert isinstance(params, REINFORCEParams)
        return REINFORCE(policy, params, rng)

    return make


def _off_policy(settings: RunSettings, params: OffPolicyParams, env: VectorEnvironment) -> Assembly:
    policies = {
        name: Policy(
            group.observation_space,
            _off_policy_head(params, group),
            settings.network_of(name),
            _generator(settings, Stream.INITIALISATION, i),
            network_kernels(settings.network_of(name)),
        )
        for i, (name, group) in enumerate(env.groups.items())
    }
    num_agents = {name: group.num_agents for name, group in env.groups.items()}
    view = CentralView if algorithm(settings.algo).is_central else LocalView
    learner = _off_policy_class(params)(policies, num_agents, view, params, _generator(settings, Stream.LEARNING))
    rng = np.random.default_rng(stream_seed(settings.seed, Stream.LEARNING, 1))
    trainer = OffPolicyTrainer(learner, params, env.num_envs, settings.trainer.max_steps, rng)
    actors: dict[str, Actor] = {
        name: WarmupActor(live_actor(policy), lambda: trainer.is_warming_up) for name, policy in policies.items()
    }
    return Assembly(policies, actors, trainer, max(1, params.update_interval // env.num_envs))


def _off_policy_class(params: OffPolicyParams) -> Callable[..., OffPolicyAlgorithm[Any]]:
    if isinstance(params, TD3Params):
        return TD3
    return DDPG if isinstance(params, DDPGParams) else SAC


def _off_policy_head(params: OffPolicyParams, group: AgentGroup) -> ActionHead:
    space = group.action_space
    if not isinstance(space, spaces.Box):
        if isinstance(params, SACParams):
            return likelihood_head(space)
        raise ConfigError(
            f"DDPG and TD3 need Box actions, and group {group.name!r} has {space}; use sac, ppo or reinforce"
        )
    if isinstance(params, SACParams):
        return SquashedGaussianHead(space)
    return DeterministicHead(space, exploration_noise(params))
