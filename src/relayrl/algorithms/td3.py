"""TD3 (Fujimoto et al., 2018) and DDPG (Lillicrap et al., 2016), which is TD3 without its three additions.

    y  = r + γ min_i Q′_i(s′, clip(π′(s′) + ε)),   ε = clip(N(0, policy_noise), ± noise_clip)
    L_Q = Σ_i ½ E[(Q_i(s, a) − y)²]
    L_π = −E[Q_1(s, π(s))], every `policy_frequency` steps of the critics, together with all targets

Actions and noise are in units of half the action range. Discrete choices are SAC's and the on-policy algorithms' business: a
deterministic policy over one-hot vectors saturates before its critic has learned anything.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.off_policy import StepMetrics
from relayrl.algorithms.params import DDPGParams, DeterministicParams, TD3Params
from relayrl.algorithms.updates.replay_actor_critic import NextActions, ReplayActorCritic
from relayrl.algorithms.updates.replay_batch import Batch, GroupBatch
from relayrl.algorithms.updates.replay_losses import deterministic_policy_loss, smoothed_action
from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.compute_device import moved
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.composite_head import only_boxes
from relayrl.models.heads.head_registry import deterministic_head

D = TypeVar("D", bound=DeterministicParams)


class DeterministicActorCritic(ReplayActorCritic[D]):
    """What DDPG and TD3 share: the critics' first network is what a deterministic policy climbs."""

    num_policy_critics = 1
    has_target_policy = True

    @classmethod
    def make_head(cls, space: Space, params: D) -> ActionHead:
        if not only_boxes(space):
            raise ConfigError(
                f"DDPG and TD3 need Box actions of real numbers, not {space}; use ppo, reinforce, impala or appo, or sac for "
                "Discrete and MultiDiscrete"
            )
        return deterministic_head(space, params.action_noise)

    def configure(self, params: D) -> None:
        super().configure(params)
        for learner in self.groups.values():
            learner.policy.head.noise_scale = params.action_noise

    @property
    def policy_frequency(self) -> int:
        """Steps of the critics per step of the policy."""
        return 1

    def smoothed(self, action: Tensor) -> Tensor:
        """The target policy's action as the targets are asked about it."""
        return action

    def next_actions(self, group: str, own: GroupBatch[Tensor]) -> NextActions:
        learner = self.groups[group]
        assert learner.target_policy is not None
        action, _ = learner.act(learner.target_policy, own.next_policy_features, own.next_mask, self.noise)
        return NextActions(self.smoothed(action))

    def policy_loss(self, group: str, q: Tensor, logp: Tensor, share: Tensor) -> Tensor:
        return deterministic_policy_loss(q, share)

    def update_policies(self, batch: Batch) -> StepMetrics:
        if self.num_updates % self.policy_frequency:
            return {}
        metrics: StepMetrics = {}
        for name in self.groups:
            metrics |= self.update_policy(name, batch)[0]
        for learner in self.groups.values():
            learner.soft_update()
        return metrics


class DDPG(DeterministicActorCritic[DDPGParams]):
    """One Q-network, a step of the policy with every step of it, exact target actions."""

    num_q = 1


class TD3(DeterministicActorCritic[TD3Params]):
    """Twin Q-networks, smoothed target actions, and a policy that waits for its critics."""

    num_q = 2

    @property
    def policy_frequency(self) -> int:
        return self.params.policy_frequency

    def smoothed(self, action: Tensor) -> Tensor:
        if isinstance(self.noise, torch.Generator):
            noise = torch.randn(action.shape, generator=self.noise, device=action.device)
        else:
            rows = self.noise.standard_normal((action.shape[0] * action.shape[1], action.shape[2]), dtype=np.float32)
            noise = moved(rows, action.device).view_as(action)
        return smoothed_action(action, noise * self.params.policy_noise, self.params.noise_clip)
