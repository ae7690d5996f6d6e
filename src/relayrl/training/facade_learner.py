"""Makes the parts of a facade's trainer: a policy per group, and the trainer that learns them.

The same args, params, groups and kernel give the same parameters. Not here: feeding it with trajectories (`facade_trainer`),
and carrying over what was learned when an agent joins (`facade_growth`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
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
from relayrl.algorithms.registry import AlgorithmEntry
from relayrl.algorithms.reinforce import REINFORCE
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3, exploration_noise
from relayrl.config.settings import Settings
from relayrl.errors import ConfigError
from relayrl.models.action_head import ActionHead
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.box_heads import DeterministicHead, SquashedGaussianHead
from relayrl.models.head_registry import likelihood_head
from relayrl.models.networks import ObservationEncoder
from relayrl.models.policy import Policy
from relayrl.training.facade_args import PolicyGroup, TrainerArgs
from relayrl.training.facade_kernels import Kernel, PairKernels, kernels_for_one_policy
from relayrl.training.off_policy import OffPolicyTrainer
from relayrl.training.on_policy import OnPolicyTrainer


class _Stream(IntEnum):
    """Who draws; the same numbers as in a run of an engine."""

    INITIALISATION = 2
    LEARNING = 3


@dataclass(frozen=True, slots=True)
class OnPolicyLearner:
    """An on-policy trainer with an algorithm per group."""

    policies: Mapping[str, Policy]
    trainer: OnPolicyTrainer
    algorithms: Mapping[str, OnPolicyAlgorithm]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the trainer's `state_dict`."""
        self.trainer.load_state_dict(state)


@dataclass(frozen=True, slots=True)
class OffPolicyLearner:
    """An off-policy trainer with one algorithm for all groups; `rng` draws from its replay."""

    policies: Mapping[str, Policy]
    trainer: OffPolicyTrainer
    algorithm: OffPolicyAlgorithm[Any]
    rng: np.random.Generator

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the trainer's `state_dict`."""
        self.trainer.load_state_dict(state)


Learner = OnPolicyLearner | OffPolicyLearner


def make_learner(
    entry: AlgorithmEntry,
    args: TrainerArgs,
    params: Settings,
    groups: Mapping[str, PolicyGroup],
    kernel: Kernel | None,
) -> Learner:
    """A fresh learner for `groups`."""
    if isinstance(params, OnPolicyParams):
        return _on_policy(entry, args, params, groups, kernel)
    if isinstance(params, OffPolicyParams):
        return _off_policy(entry, args, params, groups, kernel)
    raise ConfigError(f"{type(params).__name__} are the parameters of no algorithm")


def _on_policy(
    entry: AlgorithmEntry,
    args: TrainerArgs,
    params: OnPolicyParams,
    groups: Mapping[str, PolicyGroup],
    kernel: Kernel | None,
) -> OnPolicyLearner:
    num_agents = {name: len(group.agent_ids) for name, group in groups.items()}
    num_features = {name: ObservationEncoder(g.observation_space).num_features for name, g in groups.items()}
    policies: dict[str, ActorCritic] = {}
    algorithms: dict[str, OnPolicyAlgorithm] = {}
    for i, (name, group) in enumerate(groups.items()):
        width = central_width(num_features, num_agents, name) if entry.is_central else None
        kernels = kernels_for_one_policy(kernel)
        generator = torch.Generator().manual_seed(_seed(args, _Stream.INITIALISATION, i))
        policy = ActorCritic(group.observation_space, group.action_space, args.network, generator, width, kernels)
        if isinstance(kernels, PairKernels):
            kernels.require_used(entry.name)
        policies[name] = policy
        algorithms[name] = _algorithm(policy, params, np.random.default_rng(_seed(args, _Stream.LEARNING, i)))
    trainer = OnPolicyTrainer(algorithms, args.max_steps, is_central=entry.is_central)
    return OnPolicyLearner(policies, trainer, algorithms)


def _algorithm(policy: ActorCritic, params: OnPolicyParams, rng: np.random.Generator) -> OnPolicyAlgorithm:
    if isinstance(params, PPOParams):
        return PPO(policy, params, rng)
    if isinstance(params, REINFORCEParams):
        return REINFORCE(policy, params, rng)
    raise ConfigError(f"{type(params).__name__} are the parameters of no algorithm")


def _off_policy(
    entry: AlgorithmEntry,
    args: TrainerArgs,
    params: OffPolicyParams,
    groups: Mapping[str, PolicyGroup],
    kernel: Kernel | None,
) -> OffPolicyLearner:
    policies: dict[str, Policy] = {}
    for i, (name, group) in enumerate(groups.items()):
        kernels = kernels_for_one_policy(kernel)
        generator = torch.Generator().manual_seed(_seed(args, _Stream.INITIALISATION, i))
        head = _off_policy_head(params, group)
        policies[name] = Policy(group.observation_space, head, args.network, generator, kernels)
        if isinstance(kernels, PairKernels):
            kernels.require_used(entry.name)
    num_agents = {name: len(group.agent_ids) for name, group in groups.items()}
    view = CentralView if entry.is_central else LocalView
    generator = torch.Generator().manual_seed(_seed(args, _Stream.LEARNING))
    algorithm: OffPolicyAlgorithm[Any]
    if isinstance(params, TD3Params):
        algorithm = TD3(policies, num_agents, view, params, generator)
    elif isinstance(params, DDPGParams):
        algorithm = DDPG(policies, num_agents, view, params, generator)
    elif isinstance(params, SACParams):
        algorithm = SAC(policies, num_agents, view, params, generator)
    else:
        raise ConfigError(f"{type(params).__name__} are the parameters of no algorithm")
    rng = np.random.default_rng(_seed(args, _Stream.LEARNING, 1))
    # Trajectories come one world at a time, so replay holds the steps of one world after another.
    trainer = OffPolicyTrainer(algorithm, params, 1, args.max_steps, rng)
    return OffPolicyLearner(policies, trainer, algorithm, rng)


def _off_policy_head(params: OffPolicyParams, group: PolicyGroup) -> ActionHead:
    space = group.action_space
    if isinstance(params, SACParams):
        return SquashedGaussianHead(space) if isinstance(space, spaces.Box) else likelihood_head(space)
    if not isinstance(space, spaces.Box):
        raise ConfigError(
            f"DDPG and TD3 need Box actions, and group {group.name!r} has {space}; use sac, ppo or reinforce"
        )
    return DeterministicHead(space, exploration_noise(params))


def _seed(args: TrainerArgs, stream: _Stream, index: int = 0) -> int:
    words = np.random.SeedSequence([args.seed, int(stream), index]).generate_state(1, np.uint32)
    return int(words[0]) & 0x7FFF_FFFF
