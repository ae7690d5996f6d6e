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

import numpy as np
import torch
from torch import nn

from relayrl.algorithms.off_policy import GroupBatch, Metrics, NextActions, OffPolicyAlgorithm, ViewFactory
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.algorithms.params import SACParams
from relayrl.algorithms.state_features import StateFeatures
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.policy import Policy

DISCRETE_ENTROPY_SHARE = 0.5
"""Target entropy of discrete choices, as a share of the largest possible one."""


class SAC(OffPolicyAlgorithm[SACParams]):
    """Twin Q-networks and a squashed normal policy that is paid for its entropy."""

    num_q = 2
    num_policy_judges = 2
    has_target_policy = False

    def __init__(
        self,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        view: ViewFactory,
        params: SACParams,
        generator: torch.Generator,
        state: StateFeatures | None = None,
    ) -> None:
        super().__init__(policies, num_agents, view, params, generator, state)
        self._log_alpha = {name: nn.Parameter(torch.tensor(math.log(params.init_temperature))) for name in self.groups}
        self._alpha_optimizers = {
            name: FlatAdam([parameter], params.temperature_lr, None, USUAL_EPSILON)
            for name, parameter in self._log_alpha.items()
        }
        self._log_alpha_numbers = {name: parameter.detach().numpy() for name, parameter in self._log_alpha.items()}

    def _target_entropy(self, group: str) -> float:
        if self.params.target_entropy is not None:
            return self.params.target_entropy
        head = self.groups[group].policy.head
        if isinstance(head, MultiCategoricalHead):
            return DISCRETE_ENTROPY_SHARE * sum(math.log(part.num_outputs) for part in head.parts)
        if isinstance(head, CategoricalHead):
            return DISCRETE_ENTROPY_SHARE * math.log(head.num_outputs)
        return -float(head.num_parameters // 2)

    def temperature(self, group: str) -> float:
        """The entropy's weight α."""
        return math.exp(float(self._log_alpha_numbers[group]))

    def next_actions(self, group: str, own: GroupBatch) -> NextActions:
        choice = self.groups[group].choose_as_target(own.next_features, own.next_mask, self._rng)
        bonus = np.float32(-self.temperature(group)) * np.asarray(choice.logp).reshape(own.reward.shape)
        return NextActions(choice.action.reshape(own.action.shape), bonus)

    def update_policies(self, batch: Mapping[str, GroupBatch]) -> Metrics:
        metrics: Metrics = {}
        for name, learner in self.groups.items():
            alpha = self.temperature(name)
            own_metrics, choice = self._update_policy(name, batch, alpha)
            entropy = -batch[name].mean(np.asarray(choice.logp).reshape(batch[name].reward.shape))
            if self.params.learns_temperature:
                self._update_temperature(name, entropy)
            learner.follow()
            prefix = self._prefix(name)
            metrics |= {**own_metrics, f"{prefix}policy/entropy": entropy, f"{prefix}policy/temperature": alpha}
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
            if self.params.learns_temperature:  # one that is not learned is what the settings say
                self._log_alpha[name].data.copy_(kept["log_alpha"])
            self._alpha_optimizers[name].load_state_dict(kept["optimizer"])
