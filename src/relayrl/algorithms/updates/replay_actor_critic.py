"""Actor-critic learning from replay: Q-networks beside each policy, their targets, and the view of the critics.

Independent, central and single-agent learning differ in the `CriticView` alone. All groups are trained from the same joint,
time-aligned transitions. The losses are `replay_losses`; torch differentiates them, for any network on any device.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.critics.critic_views import CriticView, GroupShape
from relayrl.algorithms.critics.state_features import StateFeatures
from relayrl.algorithms.off_policy import GroupLearner, OffPolicyAlgorithm, P, StepMetrics, ViewFactory, descend
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.algorithms.params import OffPolicyParams
from relayrl.algorithms.updates.batch_columns import as_number
from relayrl.algorithms.updates.replay_batch import Batch, GroupBatch, encoded_batch, group_batch, present
from relayrl.algorithms.updates.replay_losses import min_q, td_loss, td_target
from relayrl.models.compute_device import moved
from relayrl.models.networks.image_encoder import ImageEncoder
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.q_networks import QNetworks
from relayrl.models.policy import Policy


@dataclass(slots=True)
class NextActions:
    """What a group would do next, and what that is worth besides the Q-networks' values."""

    action: Tensor  # [M, N, A]
    bonus: Tensor | float = 0.0  # [M, N]


class Evaluation:
    """How a learner's networks are evaluated: by their own methods."""

    def act(self, policy: Policy, features: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        """[L, A] what a policy does, as critics see it, and [L] its log-probability."""
        return policy.head.rsample(policy.distribution(features, mask), noise)

    def values(self, networks: QNetworks, inputs: Tensor) -> Tensor:
        """[Q, L] every network's value of `inputs` [L, width]."""
        twins: Tensor = networks(inputs)
        return twins

    def soft_update(self, tau: float) -> bool:
        """Whether it moved the targets, which the learner does otherwise."""
        del tau
        return False

    def policy_values(self, networks: QNetworks, inputs: Tensor, count: int) -> Tensor:
        """[Q, L] those of the first `count` networks, for a policy's loss: it does not descend their parameters."""
        return self.values(networks, inputs)[:count]


class CriticLearner(GroupLearner):
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
        has_target_policy: bool,
    ) -> None:
        super().__init__(policy, num_agents, params, has_target_policy=has_target_policy)
        self.q = QNetworks(q_layout, num_q, policy.kernels, generator).to(self.device)
        self.target_q = copy.deepcopy(self.q).requires_grad_(False)
        self.evaluation = Evaluation()
        """The accelerator's where it was asked for it."""
        self.target_encoder: ImageEncoder | None = None
        if policy.image_encoder is not None:
            # The targets' own, which the target policy and the target Q-networks see through.
            twin = self.target_policy
            self.target_encoder = copy.deepcopy(policy.image_encoder) if twin is None else twin.image_encoder
            assert self.target_encoder is not None
            self.target_encoder.requires_grad_(False)
        self.critic_optimizer = FlatAdam(self.critic_parameters(), params.critic_lr, None, USUAL_EPSILON)

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the Q-networks' loss trains: they, and the encoder of images, which the policy takes as it is."""
        return [*self.q.parameters(), *self.policy.encoder_parameters()]

    def encoded(self, rows: Any) -> GroupBatch[Tensor]:
        """`group_batch` of transitions whose images several networks see through one encoder; `features` lead back into it."""
        policy = self.policy
        if self.target_encoder is None:
            return group_batch(policy, rows, self.device)
        seen: list[Tensor] = []

        @torch.no_grad()
        def encode_next(obs: Any) -> Tensor:
            if self.target_policy is None:
                seen.append(policy.features(obs))
            return policy.features(obs, self.target_encoder)

        own = encoded_batch(policy, rows, self.device, policy.features, encode_next)
        own.next_seen = present(seen[0], own.valid | own.next_valid) if seen else None
        return own

    def act(
        self, policy: Policy, features: Tensor, mask: Tensor | None, rng: np.random.Generator | torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """[M, N, A] what a policy does, as critics see it, and [M, N] its log-probability; differentiable."""
        shape = features.shape[:2]
        rows, allowed = features.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
        if isinstance(rng, torch.Generator):
            noise = policy.head.draw_noise_torch(len(rows), rng)
        else:
            noise = moved(policy.head.draw_noise(len(rows), rng), rows.device)
        action, logp = self.evaluation.act(policy, rows, allowed, noise)
        return action.view(*shape, -1), logp.view(shape)

    def values(self, networks: QNetworks, inputs: Tensor) -> Tensor:
        """[Q, M, N] every network's value of `inputs` [M·N, width]."""
        twins = self.evaluation.values(networks, inputs)
        return twins.view(len(twins), -1, self.num_agents)

    def policy_values(self, inputs: Tensor, count: int) -> Tensor:
        """[Q, M, N] what the first `count` Q-networks say to the policy."""
        twins = self.evaluation.policy_values(self.q, inputs, count)
        return twins.view(len(twins), -1, self.num_agents)

    def descend_critics(self, loss: Tensor) -> StepMetrics:
        """Step the Q-networks down a loss; gives the loss and its gradient's norm."""
        norm = descend(loss, self.critic_optimizer, self.critic_parameters(), "Q", "critic_lr")
        return {"value/loss": as_number(loss.detach()), "value/gradient_norm": norm}

    def soft_update(self) -> None:
        if not self.evaluation.soft_update(self.tau):
            super().soft_update()

    def targets(self) -> list[tuple[list[nn.Parameter], list[nn.Parameter]]]:
        followed = [(list(self.target_q.parameters()), list(self.q.parameters())), *super().targets()]
        if self.target_encoder is None:
            return followed
        return [*followed, (list(self.target_encoder.parameters()), self.policy.encoder_parameters())]

    def modules(self) -> dict[str, nn.Module]:
        encoder = {} if self.target_encoder is None else {"target_encoder": self.target_encoder}
        return {"q": self.q, "target_q": self.target_q, **encoder, **super().modules()}

    def optimizers(self) -> dict[str, FlatAdam]:
        return {**super().optimizers(), "critic_optimizer": self.critic_optimizer}


class ReplayActorCritic(OffPolicyAlgorithm[P]):
    """Critics learn what actions are worth; policies learn what critics say."""

    shares_encoder = True
    num_q: ClassVar[int]
    num_policy_critics: ClassVar[int]
    """Q-networks whose smallest value the policy raises."""
    groups: Mapping[str, CriticLearner]
    view: CriticView

    def __init__(
        self,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        params: P,
        generator: torch.Generator,
        view: ViewFactory,
        state: StateFeatures | None = None,
    ) -> None:
        """`generator` draws the Q-networks' first parameters too; `state` encodes what critics see of states."""
        shapes = {
            name: GroupShape(num_agents[name], policy.features_layout.num_features, policy.head.critic_width)
            for name, policy in policies.items()
        }
        self.view, self.state = view(shapes), state
        self._encoders: Mapping[str, InputLayout] = {name: policy.features_layout for name, policy in policies.items()}
        self._generator = generator
        super().__init__(policies, num_agents, params, generator)

    @classmethod
    def build(
        cls,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        params: P,
        generator: torch.Generator,
        view: ViewFactory,
        state: StateFeatures | None,
    ) -> Self:
        return cls(policies, num_agents, params, generator, view, state)

    def _learner(self, policy: Policy, num_agents: int, name: str) -> CriticLearner:
        layout = self.view.layout(name, self._encoders, None if self.state is None else self.state.encoder)
        target = {"has_target_policy": self.has_target_policy}
        return CriticLearner(policy, num_agents, layout, self.num_q, self.params, self._generator, **target)

    def group_batch(self, name: str, rows: Any) -> GroupBatch[Tensor]:
        learner = self.groups[name]
        return learner.encoded(self.shifted(learner, rows))

    def configure(self, params: P) -> None:
        super().configure(params)
        for learner in self.groups.values():
            learner.critic_optimizer.lr = params.critic_lr

    @abstractmethod
    def next_actions(self, group: str, own: GroupBatch[Tensor]) -> NextActions:
        """What `group` would do after the batch's transitions."""

    @abstractmethod
    def policy_loss(self, group: str, q: Tensor, logp: Tensor, share: Tensor) -> Tensor:
        """What the policy of `group` descends, given its actions' values [M, N] and log-probabilities."""

    @abstractmethod
    def update_policies(self, batch: Batch) -> StepMetrics:
        """Improve the policies and move the targets, if it is their turn."""

    def step(self, batch: Batch, weight: Tensor) -> tuple[StepMetrics, Tensor]:
        following = self.all_next_actions(batch)
        metrics: StepMetrics = {}
        errors = []
        for name in self.groups:
            own_metrics, error = self.update_critics(name, batch, self.target_values(name, batch, following), weight)
            metrics |= self.prefixed(name, own_metrics)
            errors.append(error)
        return metrics | self.update_policies(batch), torch.stack(errors).amax(0)

    @torch.no_grad()
    def all_next_actions(self, batch: Batch) -> dict[str, NextActions]:
        """What every group would do next; drawn once, for the critics of all groups."""
        return {name: self.next_actions(name, own) for name, own in batch.items()}

    @torch.no_grad()
    def target_values(self, name: str, batch: Batch, following: Mapping[str, NextActions]) -> Tensor:
        """[M, N] what the Q-networks of a group should give for the batch's actions."""
        learner, own = self.groups[name], batch[name]
        next_features = {other: part.next_features for other, part in batch.items()}
        actions = {other: next_.action for other, next_ in following.items()}
        seen = {other: part.next_valid for other, part in batch.items()}
        inputs = self.view.next_inputs(name, next_features, actions, seen, own.next_state)
        smallest = min_q(learner.values(learner.target_q, inputs))
        return td_target(own.reward, own.discount, smallest + following[name].bonus)

    def update_critics(self, name: str, batch: Batch, target: Tensor, weight: Tensor) -> tuple[StepMetrics, Tensor]:
        """Step the Q-networks of a group; gives metrics and TD errors [M], the largest of the agents that acted."""
        learner, own = self.groups[name], batch[name]
        inputs = self.view.inputs(name, features_of(batch), actions_of(batch), own.state)
        twins = learner.values(learner.q, inputs)
        metrics = learner.descend_critics(td_loss(twins, target, own.share * weight))
        first = twins[0].detach()
        mean = as_number((first * own.share).sum())
        return {**metrics, "value/mean": mean}, ((first - target).abs() * own.valid).amax(1)

    def update_policy(self, name: str, batch: Batch) -> tuple[StepMetrics, Tensor]:
        """Step the policy of a group; gives metrics and its actions' log-probabilities [M, N]."""
        learner, own = self.groups[name], batch[name]
        features = own.features.detach()  # the critics' loss alone trains an encoder (Yarats et al., 2021)
        action, logp = learner.act(learner.policy, features, own.mask, self.noise)
        seen = {other: part.features.detach() for other, part in batch.items()}
        inputs = self.view.inputs(name, seen, actions_of(batch), own.state, action)
        q = min_q(learner.policy_values(inputs, self.num_policy_critics))
        metrics = learner.descend(self.policy_loss(name, q, logp, own.share))
        return self.prefixed(name, metrics), logp.detach()


def features_of(batch: Batch) -> dict[str, Tensor]:
    """What every group sees."""
    return {name: own.features for name, own in batch.items()}


def actions_of(batch: Batch) -> dict[str, Tensor]:
    """What every group did, as critics see it."""
    return {name: own.action for name, own in batch.items()}
