"""Soft actor-critic (Haarnoja et al., 2018), with a learned entropy temperature.

    a  = tanh(μ(s) + σ(s) ε),   log π(a|s) = log N(…) − Σ log(1 − a²)
    y  = r + γ (min_i Q′_i(s′, a′) − α log π(a′|s′))
    L_Q = Σ_i ½ E[(Q_i(s, a) − y)²]
    L_π = E[α log π(a|s) − min_i Q_i(s, a)]
    L_α = −E[log α (log π(a|s) + target_entropy(s))]

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
from relayrl.data.action_masks import num_allowed
from relayrl.data.trees import Array
from relayrl.models.compiled_head import part_sizes
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

    def _target_entropy(self, group: str, mask: Array | None = None) -> float | Array:
        """The entropy at which the temperature stays as it is; under a `mask` [M, N, A], one of each row [M, N].

        Rows have the same share of the largest entropy that their own allowed actions can have: a target that counted
        forbidden ones could be out of reach, and the temperature would rise for ever.
        """
        given, parts = self.params.target_entropy, part_sizes(self.groups[group].policy.head)
        if not parts:
            return -float(self.groups[group].policy.head.num_parameters // 2) if given is None else given
        largest = sum(math.log(size) for size in parts)
        target = DISCRETE_ENTROPY_SHARE * largest if given is None else given
        if mask is None or not largest:
            return target
        return np.asarray(target / largest * np.log(np.maximum(num_allowed(mask, parts), 1)).sum(-1))

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
            own = batch[name]
            entropy = -own.mean(np.asarray(choice.logp).reshape(own.reward.shape))
            if self.params.learns_temperature:
                target = self._target_entropy(name, own.mask)
                self._update_temperature(name, entropy - (target if isinstance(target, float) else own.mean(target)))
            learner.follow()
            prefix = self._prefix(name)
            metrics |= {**own_metrics, f"{prefix}policy/entropy": entropy, f"{prefix}policy/temperature": alpha}
        return metrics

    def _update_temperature(self, group: str, surplus: float) -> None:
        optimizer = self._alpha_optimizers[group]
        # ∂L_α / ∂ log α = E[entropy − target]: too much entropy makes it cheaper.
        optimizer.gradient.fill_(surplus)
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
