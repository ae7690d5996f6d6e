"""Soft actor-critic (Haarnoja et al., 2018), with a learned entropy temperature.

    a  = tanh(μ(s) + σ(s) ε),   log π(a|s) = log N(…) − Σ log(1 − a²)
    y  = r + γ (min_i Q′_i(s′, a′) − α log π(a′|s′))
    L_Q = Σ_i ½ E[(Q_i(s, a) − y)²]
    L_π = E[α log π(a|s) − min_i Q_i(s, a)]
    L_α = −E[log α (log π(a|s) + target_entropy)]

Log-probabilities are of actions scaled to [−1, 1]; the constant of the scale changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from relayrl.algorithms.critic_views import CriticView
from relayrl.algorithms.off_policy import (
    GroupBatch,
    Metrics,
    OffPolicyAlgorithm,
    actions_of,
    features_of,
    mean_valid,
    next_features_of,
    require_finite,
)
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.params import SACParams
from relayrl.models.action_head import LikelihoodHead
from relayrl.models.box_heads import LOG_2PI
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.policy import Policy

DISCRETE_ENTROPY_SHARE = 0.5
"""Target entropy of discrete choices, as a share of the largest possible one."""


class SAC(OffPolicyAlgorithm[SACParams]):
    """Twin Q-networks and a squashed normal policy that is paid for its entropy."""

    num_q = 2

    def __init__(
        self,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        view: type[CriticView],
        params: SACParams,
        generator: torch.Generator,
    ) -> None:
        super().__init__(policies, num_agents, view, params, generator)
        self._log_alpha = {name: nn.Parameter(torch.tensor(math.log(params.init_temperature))) for name in self.groups}
        self._alpha_optimizers = {
            name: FlatAdam([parameter], params.temperature_lr, None) for name, parameter in self._log_alpha.items()
        }

    def _target_entropy(self, group: str) -> float:
        if self.params.target_entropy is not None:
            return self.params.target_entropy
        head = self.groups[group].policy.head
        if isinstance(head, MultiCategoricalHead):
            return DISCRETE_ENTROPY_SHARE * sum(math.log(part.num_outputs) for part in head.parts)
        if isinstance(head, CategoricalHead):
            return DISCRETE_ENTROPY_SHARE * math.log(head.num_outputs)
        return -float(head.num_parameters // 2)

    def draw(self, group: str, features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions as the critics see them, drawn so that gradients flow, and their log-probabilities [M, N].

        For discrete choices the log-probability is its expectation, −H(π), which has less variance and the same meaning.
        """
        learner = self.groups[group]
        if isinstance(learner.policy.head, LikelihoodHead):
            action = learner.code.choose(learner.policy, features, mask, self._generator)
            return action, -learner.policy.head.entropy(learner.policy.distribution(features, mask))
        mean, log_std = learner.policy.distribution(features).chunk(2, -1)
        noise = torch.randn(mean.shape, generator=self._generator)
        action = (mean + log_std.exp() * noise).tanh()
        normal = -0.5 * noise.square() - log_std - 0.5 * LOG_2PI
        return action, (normal - (1.0 - action.square() + 1e-6).log()).sum(-1)

    def target_values(self, group: str, batch: Mapping[str, GroupBatch]) -> Tensor:
        learner, own = self.groups[group], batch[group]
        drawn = {name: self.draw(name, part.next_features, part.next_mask) for name, part in batch.items()}
        actions = {name: torch.where(batch[name].next_valid, action, 0.0) for name, (action, _) in drawn.items()}
        following: Tensor = learner.target_q(self.view.inputs(group, next_features_of(batch), actions)).amin(0)
        return own.reward + own.discount * (following - self._log_alpha[group].exp() * drawn[group][1])

    def update_policies(self, batch: Mapping[str, GroupBatch]) -> Metrics:
        metrics: Metrics = {}
        for name, learner in self.groups.items():
            own, alpha = batch[name], float(self._log_alpha[name].detach().exp())
            action, logp = self.draw(name, own.features, own.mask)
            inputs = self.view.inputs_with_own(name, features_of(batch), actions_of(batch), action)
            learner.q.requires_grad_(False)
            loss = mean_valid(alpha * logp - learner.q(inputs).amin(0), own.valid)
            learner.actor_optimizer.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]
            learner.q.requires_grad_(True)
            require_finite(float(loss.detach()), "policy", "actor_lr")
            norm = learner.actor_optimizer.step()
            entropy = -float(mean_valid(logp.detach(), own.valid))
            if self.params.learns_temperature:
                self._update_temperature(name, entropy)
            learner.follow()
            prefix = self._prefix(name)
            metrics |= {f"{prefix}policy/loss": float(loss.detach()), f"{prefix}policy/gradient_norm": norm}
            metrics |= {f"{prefix}policy/entropy": entropy, f"{prefix}policy/temperature": alpha}
        return metrics

    def _update_temperature(self, group: str, entropy: float) -> None:
        optimizer = self._alpha_optimizers[group]
        # ∂L_α / ∂ log α = entropy − target: too much entropy makes it cheaper.
        optimizer.gradient.fill_(entropy - self._target_entropy(group))
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        temperatures = {
            name: {"log_alpha": parameter.detach(), "optimizer": self._alpha_optimizers[name].state_dict()}
            for name, parameter in self._log_alpha.items()
        }
        return super().state_dict() | {"temperatures": temperatures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, kept in state["temperatures"].items():
            self._log_alpha[name].data.copy_(kept["log_alpha"])
            self._alpha_optimizers[name].load_state_dict(kept["optimizer"])
