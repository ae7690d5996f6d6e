"""Makes what learns: a policy per group, the algorithms that train them, and the trainer that schedules those.

The one place where settings become networks, for runs (`engines.local`) and for `TrajectoryTrainer` alike. The same plans
and seed give the same parameters. Not here: acting with the policies, and feeding the trainer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.critics.critic_sight import StateOffer, critic_sight
from relayrl.algorithms.critics.critic_views import CentralView, LocalView
from relayrl.algorithms.critics.joint_observations import CentralCritics, CentralGroup
from relayrl.algorithms.critics.state_features import StateFeatures
from relayrl.algorithms.imitation.bc import BC
from relayrl.algorithms.losses import PolicyLoss
from relayrl.algorithms.off_policy import OffPolicyAlgorithm, ViewFactory
from relayrl.algorithms.on_policy import Backend, OnPolicyAlgorithm
from relayrl.algorithms.registry import AlgorithmEntry
from relayrl.config.settings import Settings
from relayrl.data.trees import Space, space_leaves
from relayrl.errors import ConfigError
from relayrl.models.compute_device import CPU
from relayrl.models.heads.action_head import LikelihoodHead
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.image_layout import MIN_IMAGE_SIDE
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.models.networks.observation_encoder import LeafEncoding
from relayrl.models.networks.one_thread import one_thread
from relayrl.models.policy import ActorCritic, Policy
from relayrl.models.recurrent_policy import actor_critic
from relayrl.training.replay.hindsight_replay import Relabel
from relayrl.training.trainers.cloning_trainer import CloningTrainer
from relayrl.training.trainers.off_policy_trainer import OffPolicyTrainer
from relayrl.training.trainers.on_policy_trainer import OnPolicyTrainer
from relayrl.training.trainers.policy_trainer import PolicyTrainer
from relayrl.training.trainers.seeding import Stream, stream_seed

_log = logging.getLogger("relayrl.training.trainers.construction")


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One policy group: its spaces, its size, and the settings that are its own. Without `kernels`, networks are built in."""

    name: str
    observation_space: Space
    action_space: Space
    num_agents: int
    network: NetworkSettings
    params: Settings
    kernels: NetworkFactory | None = None
    make_head: Callable[[Space], LikelihoodHead] | None = None
    make_loss: Callable[[Any], PolicyLoss] | None = None


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """Everything that decides a learner besides its groups; `num_envs` environments fill one replay."""

    entry: AlgorithmEntry
    params: Settings
    seed: int
    num_envs: int
    max_steps: int
    state: StateOffer | None = None
    rollout_steps: int | None = None  # steps of each environment in a whole rollout, where rollouts have a length
    relabel: Relabel | None = None  # what other goals would have paid, where the environment has goals
    backend: Backend | None = None  # of an on-policy algorithm; None: the fastest
    device: torch.device = CPU  # where networks compute; they are made on the CPU, the same for every device


@dataclass(frozen=True, slots=True)
class Learner:
    """A trainer and the policies that it trains."""

    policies: Mapping[str, Policy]
    trainer: PolicyTrainer


MAX_SILENT_WEIGHTS = 2_000_000
"""A first layer beyond this is more likely a misread image than meant."""


@one_thread()  # orthogonal matrices, with which networks begin, are rounded as threads cut them
def build_learner(plan: LearnerPlan, groups: Sequence[GroupPlan]) -> Learner:
    """A fresh learner for `groups`."""
    for group in groups:
        for what, space in (("observation", group.observation_space), ("action", group.action_space)):
            if not any(math.prod(leaf.shape or ()) for _, leaf in space_leaves(space)):
                raise ConfigError(f"the {what} space of {group.name!r} is empty: {space!r:.100}; it must hold a number")
        _log_inputs(group)
    algorithm = plan.entry.load()
    if issubclass(algorithm, OffPolicyAlgorithm):
        return _off_policy(plan, algorithm, groups)
    if issubclass(algorithm, BC):
        return _cloning(plan, algorithm, groups)
    return _on_policy(plan, algorithm, groups)


def _log_inputs(group: GroupPlan) -> None:
    """How the built-in networks read a group's observations: a wrong guess about an image costs a whole run."""
    if group.kernels is not None:
        return
    num_flat = 0
    for path, space in space_leaves(group.observation_space):
        encoding = LeafEncoding(space)
        layout = encoding.image_layout(group.network.image_layout)
        num_flat += encoding.width if layout is None else 0
        if layout is not None:
            kind = group.network.encoder.value
            _log.info("group %s: observation %s is an image, %s, to %s", group.name, path or "array", layout, kind)
    num_weights = num_flat * group.network.hidden_sizes[0] if group.network.hidden_sizes else 0
    if num_weights > MAX_SILENT_WEIGHTS:
        _log.warning(
            "group %s: %d numbers of the observation go into an MLP as they are, whose first layer has %.1f million weights; "
            "give images two neighbouring axes of at least %d, larger than the others, set network.image_layout, or have fewer "
            "hidden units",
            group.name,
            num_flat,
            num_weights / 1e6,
            MIN_IMAGE_SIDE,
        )


def _generator(plan: LearnerPlan, stream: Stream, index: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(plan.seed, stream, index))


def _rng(plan: LearnerPlan, index: int) -> np.random.Generator:
    return np.random.default_rng(stream_seed(plan.seed, Stream.LEARNING, index))


def _on_policy(plan: LearnerPlan, algorithm: type[Any], groups: Sequence[GroupPlan]) -> Learner:
    central = _central_critics(plan, groups) if plan.entry.is_central else None
    policies: dict[str, ActorCritic] = {}
    algorithms: dict[str, OnPolicyAlgorithm] = {}
    for i, group in enumerate(groups):
        policy = algorithm.make_policy(
            group.observation_space,
            group.action_space,
            group.network,
            group.params,
            _generator(plan, Stream.INITIALISATION, i),
            None if central is None else central.layout(group.name),
            group.kernels,
            None if group.make_head is None else group.make_head(group.action_space),
        )
        policies[group.name] = policy = policy.to(plan.device)
        algorithms[group.name] = own = algorithm(policy, group.params, _rng(plan, i), plan.backend or FASTEST)
        own.rollout_steps, own.make_loss = plan.rollout_steps, group.make_loss
    return Learner(policies, OnPolicyTrainer(algorithms, plan.max_steps, central))


def _cloning(plan: LearnerPlan, algorithm: type[BC], groups: Sequence[GroupPlan]) -> Learner:
    if any(group.make_loss for group in groups):
        raise ConfigError(f"{plan.entry.name} takes no loss: it learns the likelihood of what was demonstrated")
    policies: dict[str, ActorCritic] = {}
    algorithms: dict[str, BC] = {}
    for i, group in enumerate(groups):
        generator = _generator(plan, Stream.INITIALISATION, i)
        head = None if group.make_head is None else group.make_head(group.action_space)
        spaces = group.observation_space, group.action_space
        policy = actor_critic(*spaces, group.network, generator, None, group.kernels, head)
        policies[group.name] = policy = policy.to(plan.device)
        params: Any = group.params
        algorithms[group.name] = algorithm(policy, params, stream_seed(plan.seed, Stream.LEARNING, i), FASTEST)
    return Learner(policies, CloningTrainer(algorithms, plan.max_steps))


def _central_critics(plan: LearnerPlan, groups: Sequence[GroupPlan]) -> CentralCritics:
    members = {
        group.name: CentralGroup(
            group.observation_space, group.num_agents, critic_sight(group.network.critic_input, plan.state)
        )
        for group in groups
    }
    return CentralCritics(members, plan.state)


def _off_policy(plan: LearnerPlan, algorithm: type[OffPolicyAlgorithm[Any]], groups: Sequence[GroupPlan]) -> Learner:
    params: Any = plan.params
    if plan.backend is not None:
        raise ConfigError(f"{plan.entry.name} learns in one process; several learners are for on-policy algorithms")
    if any(group.make_head or group.make_loss for group in groups):
        raise ConfigError(
            f"{plan.entry.name} takes no network.head and no loss: those are of on-policy algorithms; derive from "
            "relayrl.extend.OffPolicyAlgorithm for other losses"
        )
    # Critics of several agents see the images of all of them.
    shares = {"shares_encoder": True} if algorithm.shares_encoder and not plan.entry.is_central else {}
    policies = {
        group.name: algorithm.policy_class(
            group.observation_space,
            algorithm.make_head(group.action_space, params),
            group.network,
            _generator(plan, Stream.INITIALISATION, i),
            group.kernels,
            **shares,
        ).to(plan.device)
        for i, group in enumerate(groups)
    }
    num_agents = {group.name: group.num_agents for group in groups}
    view, state = _off_policy_view(plan, groups) if plan.entry.is_central else (LocalView, None)
    learner = algorithm.build(policies, num_agents, params, _generator(plan, Stream.LEARNING), view, state)
    rng = _rng(plan, 1)
    return Learner(policies, OffPolicyTrainer(learner, params, plan.num_envs, plan.max_steps, rng, plan.relabel))


def _off_policy_view(plan: LearnerPlan, groups: Sequence[GroupPlan]) -> tuple[ViewFactory, StateFeatures | None]:
    sights = {group.name: critic_sight(group.network.critic_input, plan.state) for group in groups}
    state = None
    if plan.state is not None and any(sight.state for sight in sights.values()):
        normalizes = any(group.network.normalize_observations for group in groups)
        state = StateFeatures(plan.state, normalizes=normalizes).to(plan.device)
    width = 0 if state is None else state.encoder.num_features
    return partial(CentralView, sights=sights, num_state_features=width), state
