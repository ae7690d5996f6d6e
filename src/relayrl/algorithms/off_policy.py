"""What algorithms that learn from replay have in common: networks per group, their targets, and the view of the critics.

Independent, central and single-agent learning differ in the `CriticView` alone. All groups are trained from the same joint,
time-aligned transitions; each has its own policy, Q-networks, targets and optimisers. Losses and their derivatives are
written out in NumPy; networks are whatever is `Differentiable`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.action_codes import Choice, action_code
from relayrl.algorithms.critic_views import CriticView, GroupShape, present
from relayrl.algorithms.divergence import NOT_FINITE_IS_RAISED, require_finite
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.algorithms.params import OffPolicyParams
from relayrl.algorithms.state_features import StateFeatures
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.models.differentiable import Differentiable, Differentiables, differentiable, differentiables
from relayrl.models.input_layout import InputLayout
from relayrl.models.mlp_policy import features_in_numpy
from relayrl.models.policy import Policy
from relayrl.models.q_networks import QNetworks
from relayrl.models.shared_rows import SharedRows

Metrics = dict[str, float]
ViewFactory = Callable[[Mapping[str, GroupShape]], CriticView]


@dataclass(slots=True)
class GroupBatch:
    """Transitions of one group, axes `[M, N, …]`; actions as the critics see them."""

    features: Array
    action: Array
    reward: Array
    next_features: Array
    discount: Array
    valid: Array
    next_valid: Array  # whether the others' critics see the agent next
    mask: Array | None
    next_mask: Array | None
    state: Array | None = None  # [M, S] features of the world's global state, where critics see it
    next_state: Array | None = None
    share: Array = field(init=False)  # [M, N] each row's share of a mean over the rows on which agents acted

    def __post_init__(self) -> None:
        self.share = np.asarray(self.valid / np.float32(max(int(np.count_nonzero(self.valid)), 1)), np.float32)

    def mean(self, rows: Array) -> float:
        """Mean of `[M, N]` over the rows on which agents acted."""
        return float(np.vdot(rows, self.share))


@dataclass(slots=True)
class NextActions:
    """What a group would do next, and what that is worth besides the Q-networks' opinion."""

    action: Array  # [M, N, A]
    bonus: Array | float = 0.0  # [M, N]


class GroupLearner:
    """One group's policy with its Q-networks, targets and optimisers."""

    def __init__(
        self,
        policy: Policy,
        num_agents: int,
        q_layout: InputLayout,
        num_q: int,
        params: OffPolicyParams,
        generator: torch.Generator,
        *,
        num_policy_judges: int,
        has_target_policy: bool,
    ) -> None:
        self.policy, self.num_agents, self.tau, self.code = policy, num_agents, params.tau, action_code(policy)
        self.q = QNetworks(q_layout, num_q, policy.kernels, generator)
        self.target_q = copy.deepcopy(self.q).requires_grad_(False)
        self.target_policy = copy.deepcopy(policy).requires_grad_(False) if has_target_policy else None
        self.actor_optimizer = FlatAdam(policy.actor_parameters(), params.actor_lr, None, USUAL_EPSILON)
        self.critic_optimizer = FlatAdam(list(self.q.parameters()), params.critic_lr, None, USUAL_EPSILON)
        self._followers = [(flattened(list(self.target_q.parameters())), self.critic_optimizer.vector)]
        if self.target_policy is not None:
            self._followers.append((flattened(self.target_policy.actor_parameters()), self.actor_optimizer.vector))
        self._follower_arrays = [(t.numpy(), s.numpy()) for t, s in self._followers if t.device.type == "cpu"]
        self._num_policy_judges = num_policy_judges

    # How networks are run is settled when that is first asked for, and so sees what was changed since construction.

    @cached_property
    def features(self) -> Callable[[Any], Array]:
        """[M, F] what the policy's network sees of observations `[M, …]`."""
        return features_in_numpy(self.policy)

    @cached_property
    def actor(self) -> Differentiable:
        """The policy's network."""
        return differentiable(self.policy.actor)

    @cached_property
    def judges(self) -> Differentiables:
        """The Q-networks."""
        return differentiables(list(self.q.judges))

    @cached_property
    def policy_judges(self) -> Differentiables:
        """Those whose lowest value the policy raises."""
        judges = list(self.q.judges)
        count = self._num_policy_judges
        return self.judges if count == len(judges) else differentiables(judges[:count])

    @cached_property
    def _target_judges(self) -> Differentiables:
        return differentiables(list(self.target_q.judges), learns=False)

    @cached_property
    def _target_actor(self) -> Differentiable | None:
        return None if self.target_policy is None else differentiable(self.target_policy.actor, learns=False)

    def choose(self, features: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        """What the policy does, differentiable by its network's outputs; rows are those of `[M, N]`."""
        return self._choice(self.actor, features, mask, rng)

    def choose_as_target(self, features: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        """What the target policy does; the policy itself where there is no target."""
        return self._choice(self._target_actor or self.actor, features, mask, rng)

    def _choice(self, network: Differentiable, features: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        return self.code.choose(network.forward(as_rows(features)), None if mask is None else as_rows(mask), rng)

    def lowest_target(self, inputs: Array | SharedRows) -> Array:
        """[M, N] the lowest value that the targets give `inputs` [M·N, width]."""
        values = [value[:, 0] for value in self._target_judges.forward(inputs)]
        return np.asarray(np.minimum.reduce(values).reshape(-1, self.num_agents))

    def follow(self) -> None:
        """Move the targets a little towards the newest parameters."""
        compiled = kernels() if self._follower_arrays else None
        if compiled is None:
            for target, source in self._followers:
                target.lerp_(source, self.tau)
            return
        for own, newest in self._follower_arrays:
            compiled.follow(own, newest, self.tau, num_threads())

    def state_dict(self) -> dict[str, Any]:
        """Networks besides the policy, and optimisers."""
        return {
            **{name: module.state_dict() for name, module in self._modules().items()},
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name, module in self._modules().items():
            module.load_state_dict(state[name])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])

    def _modules(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"q": self.q, "target_q": self.target_q}
        return modules if self.target_policy is None else {**modules, "target_policy": self.target_policy}


P = TypeVar("P", bound=OffPolicyParams)


class OffPolicyAlgorithm(ABC, Generic[P]):
    """Trains the policies of all groups from joint transitions."""

    num_q: int
    num_policy_judges: int
    """Q-networks whose lowest value the policy raises."""
    has_target_policy: bool

    def __init__(
        self,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        view: ViewFactory,
        params: P,
        generator: torch.Generator,
        state: StateFeatures | None = None,
    ) -> None:
        """`generator` draws the first parameters, and the seed of the noise; `state` encodes what critics see of states."""
        shapes = {name: _shape(policy, num_agents[name]) for name, policy in policies.items()}
        self.params = params
        self.view, self.state = view(shapes), state
        encoders = {name: policy.encoder for name, policy in policies.items()}
        state_layout = None if state is None else state.encoder
        self.groups = {
            name: GroupLearner(
                policy,
                num_agents[name],
                self.view.layout(name, encoders, state_layout),
                self.num_q,
                params,
                generator,
                num_policy_judges=self.num_policy_judges,
                has_target_policy=self.has_target_policy,
            )
            for name, policy in policies.items()
        }
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        self._num_updates = 0

    @abstractmethod
    def next_actions(self, group: str, own: GroupBatch) -> NextActions:
        """What `group` would do after the batch's transitions."""

    @abstractmethod
    def update_policies(self, batch: Mapping[str, GroupBatch]) -> Metrics:
        """Improve the policies and move the targets, if it is their turn."""

    def observe(self, rollouts: Mapping[str, Rollout]) -> None:
        """See new observations before they are learned from: normalisation moves here."""
        if self.state is not None:
            self.state.observe(next(iter(rollouts.values())))
        for name, rollout in rollouts.items():
            policy = self.groups[name].policy
            if policy.normalizer is not None:
                raw = policy.encoder(map_tree(torch.from_numpy, rollout.obs))
                policy.normalizer.update(raw[torch.from_numpy(rollout.valid)])

    def update(self, transitions: Any) -> tuple[Metrics, Array]:
        """One gradient step; gives metrics and the temporal-difference error [M] of each transition."""
        batch = {name: self._batch(name, rows) for name, rows in transitions.groups.items()}
        if self.state is not None:
            now, after = self.state.encode(transitions.state), self.state.encode(transitions.next_state)
            for own in batch.values():
                own.state, own.next_state = now, after
        following = self.all_next_actions(batch)
        metrics: Metrics = {}
        errors = np.zeros(len(transitions), np.float32)
        for name in self.groups:
            target = self.target_values(name, batch, following)
            own_metrics, surprise = self._update_critic(name, batch, target, transitions.weight[:, None])
            metrics |= {self._prefix(name) + key: number for key, number in own_metrics.items()}
            errors = np.maximum(errors, surprise)
        self._num_updates += 1
        return metrics | self.update_policies(batch), errors

    def _prefix(self, group: str) -> str:
        return "" if len(self.groups) == 1 else f"{group}/"

    def _batch(self, name: str, rows: Any) -> GroupBatch:
        learner = self.groups[name]
        shape = rows.valid.shape

        def features(obs: Any) -> Array:
            encoded = learner.features(map_tree(as_rows, obs))
            return encoded.reshape(*shape, -1)

        return GroupBatch(
            features=present(features(rows.obs), rows.valid),
            action=present(learner.code.encode(rows.action), rows.valid),
            reward=rows.reward,
            # Whoever acted sees what followed, even where the others do not see it any more.
            next_features=present(features(rows.next_obs), rows.valid | rows.next_valid),
            discount=rows.discount,
            valid=rows.valid,
            next_valid=rows.next_valid,
            mask=rows.mask,
            next_mask=rows.next_mask,
        )

    def all_next_actions(self, batch: Mapping[str, GroupBatch]) -> dict[str, NextActions]:
        """What every group would do next."""
        return {name: self.next_actions(name, own) for name, own in batch.items()}

    def target_values(self, name: str, batch: Mapping[str, GroupBatch], following: Mapping[str, NextActions]) -> Array:
        """[M, N] what the Q-networks of a group should give for the batch's actions."""
        next_features = {other: part.next_features for other, part in batch.items()}
        actions = {other: next_.action for other, next_ in following.items()}
        seen, own = {other: part.next_valid for other, part in batch.items()}, batch[name]
        alone = own.valid & ~own.next_valid & (own.discount > 0)
        inputs = self.view.next_inputs(name, next_features, actions, seen, alone, own.next_state)
        lowest = self.groups[name].lowest_target(inputs)
        return np.asarray(own.reward + own.discount * (lowest + following[name].bonus), np.float32)

    @NOT_FINITE_IS_RAISED
    def _update_critic(
        self, name: str, batch: Mapping[str, GroupBatch], target: Array, weight: Array
    ) -> tuple[Metrics, Array]:
        """Step the Q-networks on Σ over judges of ½ E[w (Q − y)²], over the rows on which the agent acted."""
        learner, own = self.groups[name], batch[name]
        inputs = self.view.inputs(name, features_of(batch), actions_of(batch), own.state)
        share = own.share * weight
        values, loss = learner.judges.regress(inputs, target.reshape(-1, 1), share.reshape(-1, 1))
        require_finite(loss, "Q", "critic_lr")
        norm = learner.critic_optimizer.step()
        first = values[0].reshape(target.shape)
        surprise = np.maximum.reduce(np.abs(first - target) * own.valid, 1)
        return {"value/loss": loss, "value/mean": own.mean(first), "value/gradient_norm": norm}, surprise

    @NOT_FINITE_IS_RAISED
    def _update_policy(
        self, name: str, batch: Mapping[str, GroupBatch], entropy_weight: float
    ) -> tuple[Metrics, Choice]:
        """Step one policy on E[α log π(a|s) − min_i Q_i(s, a)], over the rows on which the agent acted."""
        learner, own = self.groups[name], batch[name]
        choice = learner.choose(own.features, own.mask, self._rng)
        inputs = self.view.inputs(name, features_of(batch), actions_of(batch), own.state)
        action, share = self.view.own(name, choice.action.reshape(own.action.shape)), own.share.reshape(-1)
        lowest, by_action = learner.policy_judges.lowest(inputs, action, -share)
        loss = float(np.vdot(entropy_weight * choice.logp - lowest, share))
        require_finite(loss, "policy", "actor_lr")
        learner.actor.backward(choice.output_gradient(by_action, np.float32(entropy_weight) * share))
        norm = learner.actor_optimizer.step()
        prefix = self._prefix(name)
        return {f"{prefix}policy/loss": loss, f"{prefix}policy/gradient_norm": norm}, choice

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next update, besides the policies."""
        groups = {name: learner.state_dict() for name, learner in self.groups.items()}
        state = {} if self.state is None else {"state_features": self.state.state_dict()}
        return {"groups": groups, "num_updates": self._num_updates, "rng": self._rng.bit_generator.state, **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name, learner in self.groups.items():
            learner.load_state_dict(state["groups"][name])
        if self.state is not None:
            self.state.load_state_dict(state["state_features"])
        self._num_updates = state["num_updates"]
        self._rng.bit_generator.state = state["rng"]


def features_of(batch: Mapping[str, GroupBatch]) -> dict[str, Array]:
    """What every group sees."""
    return {name: own.features for name, own in batch.items()}


def actions_of(batch: Mapping[str, GroupBatch]) -> dict[str, Array]:
    """What every group did, scaled."""
    return {name: own.action for name, own in batch.items()}


def as_rows(leaf: Array) -> Array:
    """`[M, N, …]` as `[M·N, …]`."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


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
