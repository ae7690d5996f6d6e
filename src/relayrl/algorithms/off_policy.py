"""What algorithms that learn from replay have in common: networks per group, their targets, and the view of the critics.

Independent, central and single-agent learning differ in the `CriticView` alone. All groups are trained from the same joint,
time-aligned transitions; each has its own policy, Q-networks, targets and optimisers.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.action_codes import action_code
from relayrl.algorithms.critic_views import CriticView, GroupShape
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.params import OffPolicyParams
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.errors import TrainingDivergedError
from relayrl.models.policy import Policy
from relayrl.models.q_networks import QNetworks

Metrics = dict[str, float]


@dataclass(slots=True)
class GroupBatch:
    """Transitions of one group as tensors, axes `[M, N, …]`; actions as the critics see them."""

    features: Tensor
    action: Tensor
    reward: Tensor
    next_features: Tensor
    discount: Tensor
    valid: Tensor
    next_valid: Tensor  # [M, N, 1]
    mask: Tensor | None
    next_mask: Tensor | None


class GroupLearner:
    """One group's policy with its Q-networks, targets and optimisers."""

    def __init__(
        self,
        policy: Policy,
        num_agents: int,
        q_width: int,
        num_q: int,
        params: OffPolicyParams,
        generator: torch.Generator,
    ) -> None:
        self.policy, self.num_agents, self.tau, self.code = policy, num_agents, params.tau, action_code(policy)
        self.q = QNetworks(q_width, num_q, policy.network, generator)
        self.target_policy, self.target_q = copy.deepcopy(policy), copy.deepcopy(self.q)
        self.actor_optimizer = FlatAdam(policy.actor_parameters(), params.actor_lr, None)
        self.critic_optimizer = FlatAdam(list(self.q.parameters()), params.critic_lr, None)
        self._target_vectors = [
            flattened(self.target_policy.actor_parameters()),
            flattened(list(self.target_q.parameters())),
        ]
        for module in (self.target_policy, self.target_q):
            module.requires_grad_(False)

    def follow(self) -> None:
        """Move the targets a little towards the newest parameters."""
        sources = (self.actor_optimizer.vector, self.critic_optimizer.vector)
        for target, source in zip(self._target_vectors, sources, strict=True):
            target.lerp_(source, self.tau)

    def state_dict(self) -> dict[str, Any]:
        """Networks besides the policy, and optimisers."""
        return {
            "q": self.q.state_dict(),
            "target_policy": self.target_policy.state_dict(),
            "target_q": self.target_q.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name in ("q", "target_policy", "target_q"):
            getattr(self, name).load_state_dict(state[name])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])


P = TypeVar("P", bound=OffPolicyParams)


class OffPolicyAlgorithm(ABC, Generic[P]):
    """Trains the policies of all groups from joint transitions."""

    num_q: int

    def __init__(
        self,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        view: type[CriticView],
        params: P,
        generator: torch.Generator,
    ) -> None:
        shapes = {name: _shape(policy, num_agents[name]) for name, policy in policies.items()}
        self.params, self._generator = params, generator
        self.view = view(shapes)
        self.groups = {
            name: GroupLearner(policy, num_agents[name], self.view.width(name), self.num_q, params, generator)
            for name, policy in policies.items()
        }
        self._num_updates = 0

    @abstractmethod
    def target_values(self, group: str, batch: Mapping[str, GroupBatch]) -> Tensor:
        """[M, N] what the Q-networks of `group` should give for the batch's actions."""

    @abstractmethod
    def update_policies(self, batch: Mapping[str, GroupBatch]) -> Metrics:
        """Improve the policies and move the targets, if it is their turn."""

    def observe(self, rollouts: Mapping[str, Rollout]) -> None:
        """See new observations before they are learned from: normalisation moves here."""
        for name, rollout in rollouts.items():
            policy = self.groups[name].policy
            if policy.normalizer is not None:
                raw = policy.encoder(map_tree(torch.from_numpy, rollout.obs))
                policy.normalizer.update(raw[torch.from_numpy(rollout.valid)])

    def update(self, transitions: Any) -> tuple[Metrics, Array]:
        """One gradient step; gives metrics and the temporal-difference error [M] of each transition."""
        batch = {name: self._batch(name, rows) for name, rows in transitions.groups.items()}
        weight = torch.from_numpy(transitions.weight)[:, None]
        metrics: Metrics = {}
        errors = torch.zeros(len(transitions))
        for name in self.groups:
            own, group_errors = self._update_critic(name, batch, weight)
            metrics |= {self._prefix(name) + key: number for key, number in own.items()}
            errors = torch.maximum(errors, group_errors)
        self._num_updates += 1
        return metrics | self.update_policies(batch), np.asarray(errors.numpy())

    def _prefix(self, group: str) -> str:
        return "" if len(self.groups) == 1 else f"{group}/"

    def _batch(self, name: str, rows: Any) -> GroupBatch:
        learner = self.groups[name]
        policy = learner.policy
        with torch.no_grad():
            features = policy.features(map_tree(torch.from_numpy, rows.obs))
            next_features = policy.features(map_tree(torch.from_numpy, rows.next_obs))
            valid = torch.from_numpy(rows.valid)
            # Absent agents are zeros to everybody's critic, whatever their columns hold.
            here, there = valid[..., None], torch.from_numpy(rows.next_valid)[..., None]
            return GroupBatch(
                features=torch.where(here, features, 0.0),
                action=torch.where(here, learner.code.encode(torch.from_numpy(rows.action)), 0.0),
                reward=torch.from_numpy(rows.reward),
                next_features=torch.where(there, next_features, 0.0),
                discount=torch.from_numpy(rows.discount),
                valid=valid,
                next_valid=there,
                mask=None if rows.mask is None else torch.from_numpy(rows.mask),
                next_mask=None if rows.next_mask is None else torch.from_numpy(rows.next_mask),
            )

    def _update_critic(self, name: str, batch: Mapping[str, GroupBatch], weight: Tensor) -> tuple[Metrics, Tensor]:
        learner, own = self.groups[name], batch[name]
        with torch.no_grad():
            target = self.target_values(name, batch)
        inputs = self.view.inputs(name, features_of(batch), actions_of(batch))
        value = learner.q(inputs)
        error = value - target
        # Σ over judges of ½ E[(Q − y)²], over the rows on which the agent acted.
        loss = 0.5 * mean_valid(error.square().sum(0) * weight, own.valid)
        learner.critic_optimizer.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        require_finite(float(loss.detach()), "Q", "critic_lr")
        norm = learner.critic_optimizer.step()
        surprise = (error[0].detach().abs() * own.valid).amax(1)
        number = float(mean_valid(value[0].detach(), own.valid))
        return {"value/loss": float(loss.detach()), "value/mean": number, "value/gradient_norm": norm}, surprise

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next update, besides the policies."""
        groups = {name: learner.state_dict() for name, learner in self.groups.items()}
        return {"groups": groups, "num_updates": self._num_updates, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name, learner in self.groups.items():
            learner.load_state_dict(state["groups"][name])
        self._num_updates = state["num_updates"]
        self._generator.set_state(state["generator"])


def require_finite(loss: float, network: str, rate: str) -> None:
    """A loss that is not a number must not reach the parameters."""
    if not math.isfinite(loss):
        raise TrainingDivergedError(f"the {network} loss became {loss}; lower {rate}, or check the rewards")


def features_of(batch: Mapping[str, GroupBatch]) -> dict[str, Tensor]:
    """What every group sees."""
    return {name: own.features for name, own in batch.items()}


def next_features_of(batch: Mapping[str, GroupBatch]) -> dict[str, Tensor]:
    """What every group sees next."""
    return {name: own.next_features for name, own in batch.items()}


def actions_of(batch: Mapping[str, GroupBatch]) -> dict[str, Tensor]:
    """What every group did, scaled."""
    return {name: own.action for name, own in batch.items()}


def mean_valid(rows: Tensor, valid: Tensor) -> Tensor:
    """Mean of `[M, N]` over the rows on which agents acted."""
    return rows.mean() if bool(valid.all()) else (rows * valid).sum() / valid.sum().clamp(min=1)


def flattened(parameters: list[nn.Parameter]) -> Tensor:
    """One vector of which the parameters become views."""
    vector = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = vector[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return vector


def _shape(policy: Policy, num_agents: int) -> GroupShape:
    return GroupShape(num_agents, policy.encoder.num_features, action_code(policy).width)
