"""Soft actor-critic (Haarnoja et al., 2018), with a learned entropy temperature.

    a  = tanh(μ(s) + σ(s) ε),   log π(a|s) = log N(…) − Σ log(1 − a²)
    y  = r + γ (min_i Q′_i(s′, a′) − α log π(a′|s′))
    L_Q = Σ_i ½ E[(Q_i(s, a) − y)²]
    L_π = E[α log π(a|s) − min_i Q_i(s, a)]
    L_α = −E[log α (log π(a|s) + target_entropy(s))]

Log-probabilities are of actions scaled to [−1, 1]; the constant of the scale changes nothing. Discrete choices are relaxed
(`discrete_heads.OneHotHead`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from relayrl.algorithms.off_policy import StepMetrics, descend
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.algorithms.params import SACParams
from relayrl.algorithms.updates.batch_columns import Number, as_number
from relayrl.algorithms.updates.replay_actor_critic import NextActions, ReplayActorCritic
from relayrl.algorithms.updates.replay_batch import Batch, GroupBatch
from relayrl.algorithms.updates.replay_losses import soft_policy_loss, soft_value, temperature_loss
from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.composite_head import is_plain, only_boxes
from relayrl.models.heads.head_registry import likelihood_head, squashed_head

DISCRETE_ENTROPY_SHARE = 0.5
"""Target entropy of discrete choices, as a share of the largest possible one."""


class SAC(ReplayActorCritic[SACParams]):
    """Twin Q-networks and a squashed normal policy that is rewarded for its entropy."""

    num_q = 2
    num_policy_critics = 2

    def prepare(self) -> None:
        params, first = self.params, torch.tensor(math.log(self.params.init_temperature))
        self._log_alpha = {name: nn.Parameter(first.to(own.device, copy=True)) for name, own in self.groups.items()}
        self.temperature_optimizers = {
            name: FlatAdam([parameter], params.temperature_lr, None, USUAL_EPSILON)
            for name, parameter in self._log_alpha.items()
        }

    @classmethod
    def make_head(cls, space: Space, params: SACParams) -> ActionHead:
        if only_boxes(space):
            return squashed_head(space)
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or not is_plain(space):
            raise ConfigError(
                f"SAC needs Box actions of real numbers, Discrete or MultiDiscrete ones, not {space}; use ppo, reinforce, "
                "impala or appo"
            )
        return likelihood_head(space)

    def configure(self, params: SACParams) -> None:
        super().configure(params)
        for name, optimizer in self.temperature_optimizers.items():
            optimizer.lr = params.temperature_lr
            if not params.learns_temperature:
                self._log_alpha[name].data.fill_(math.log(params.init_temperature))

    def target_entropy(self, group: str, mask: Tensor | None = None) -> Tensor:
        """The entropy at which the temperature stays as it is; under a `mask` [M, N, A], one of each row [M, N].

        Rows have the same share of the largest entropy that their own allowed actions can have: a target that counted
        forbidden ones could be out of reach, and the temperature would rise for ever.
        """
        given, head = self.params.target_entropy, self.groups[group].policy.head
        if not head.part_sizes:
            return self._constant(group, -float(head.critic_width) if given is None else given)
        largest = sum(math.log(size) for size in head.part_sizes)
        target = DISCRETE_ENTROPY_SHARE * largest if given is None else given
        if mask is None or not largest:
            return self._constant(group, target)
        counts = torch.stack([part.sum(-1).clamp(min=1) for part in torch.split(mask, list(head.part_sizes), -1)], -1)
        return target / largest * counts.double().log().sum(-1)

    def _constant(self, group: str, number: float) -> Tensor:
        """A number beside the temperature; filled there, since a copy from the host cannot be captured in a CUDA graph."""
        return torch.full((), number, dtype=torch.float64, device=self._log_alpha[group].device)

    def temperature(self, group: str) -> Number:
        """The entropy's weight α; on a GPU, where it stays there."""
        log_alpha = self._log_alpha[group].detach()
        return math.exp(log_alpha.item()) if log_alpha.device.type == "cpu" else log_alpha.exp()

    def next_actions(self, group: str, own: GroupBatch[Tensor]) -> NextActions:
        learner = self.groups[group]
        action, logp = learner.act(learner.policy, own.next_policy_features, own.next_mask, self.noise)
        return NextActions(action, soft_value(torch.zeros_like(logp), logp, self.temperature(group)))

    def policy_loss(self, group: str, q: Tensor, logp: Tensor, share: Tensor) -> Tensor:
        return soft_policy_loss(q, logp, self.temperature(group), share)

    def update_policies(self, batch: Batch) -> StepMetrics:
        metrics: StepMetrics = {}
        for name, learner in self.groups.items():
            alpha, own = self.temperature(name), batch[name]
            own_metrics, logp = self.update_policy(name, batch)
            entropy = -as_number((logp * own.share).sum())
            self.update_temperature(name, entropy, own.mask, own.share)
            learner.soft_update()
            told: StepMetrics = {"policy/entropy": entropy, "policy/temperature": alpha}
            metrics |= own_metrics | self.prefixed(name, told)
        return metrics

    def update_temperature(self, group: str, entropy: Number, mask: Tensor | None, share: Tensor) -> None:
        """Step the temperature, given the policy's mean entropy over the rows of `share`."""
        if not self.params.learns_temperature:
            return
        target = self.target_entropy(group, mask)
        mean = target if target.ndim == 0 else (target * share).sum()
        parameter = self._log_alpha[group]
        now = torch.as_tensor(entropy, dtype=torch.float64, device=parameter.device)
        loss = temperature_loss(parameter, now, mean.to(parameter.device))
        descend(loss, self.temperature_optimizers[group], [parameter], "temperature", "temperature_lr")

    def optimizers(self) -> list[FlatAdam]:
        return [*super().optimizers(), *self.temperature_optimizers.values()]

    def state_dict(self) -> dict[str, Any]:
        temperatures = {
            name: {"log_alpha": parameter.detach(), "optimizer": self.temperature_optimizers[name].state_dict()}
            for name, parameter in self._log_alpha.items()
        }
        return super().state_dict() | {"temperatures": temperatures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, kept in state["temperatures"].items():
            if self.params.learns_temperature:  # one that is not learned is what the settings say
                self._log_alpha[name].data.copy_(kept["log_alpha"])
            self.temperature_optimizers[name].load_state_dict(kept["optimizer"])
