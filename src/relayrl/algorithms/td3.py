"""TD3 (Fujimoto et al., 2018) and DDPG (Lillicrap et al., 2016), which is TD3 without its three additions.

    y  = r + γ min_i Q′_i(s′, clip(π′(s′) + ε)),   ε = clip(N(0, policy_noise), ± noise_clip)
    L_Q = Σ_i ½ E[(Q_i(s, a) − y)²]
    L_π = −E[Q_1(s, π(s))], every `policy_frequency` steps of the critics, together with all targets

Actions and noise are in units of half the action range. Discrete choices are SAC's and the on-policy algorithms' business: a
deterministic policy over one-hot vectors saturates before its critic has learned anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from relayrl.algorithms.off_policy import (
    GroupBatch,
    GroupLearner,
    Metrics,
    OffPolicyAlgorithm,
    P,
    actions_of,
    features_of,
    mean_valid,
    next_features_of,
    require_finite,
)
from relayrl.algorithms.params import DDPGParams, OffPolicyParams, TD3Params


class DDPG(OffPolicyAlgorithm[P]):
    """One Q-network, a step of the policy with every step of it, exact target actions."""

    num_q = 1

    @property
    def policy_frequency(self) -> int:
        """Steps of the critics per step of the policy."""
        return 1

    def target_actions(self, learner: GroupLearner, own: GroupBatch) -> Tensor:
        """[M, N, A] what the target policy would do next, as the critics see it."""
        return learner.code.choose(learner.target_policy, own.next_features, own.next_mask, self._generator)

    def target_values(self, group: str, batch: Mapping[str, GroupBatch]) -> Tensor:
        learner, own = self.groups[group], batch[group]
        actions = {
            name: torch.where(part.next_valid, self.target_actions(self.groups[name], part), 0.0)
            for name, part in batch.items()
        }
        following: Tensor = learner.target_q(self.view.inputs(group, next_features_of(batch), actions))
        return own.reward + own.discount * following.amin(0)

    def update_policies(self, batch: Mapping[str, GroupBatch]) -> Metrics:
        if self._num_updates % self.policy_frequency:
            return {}
        metrics: Metrics = {}
        for name, learner in self.groups.items():
            own = batch[name]
            action = learner.code.choose(learner.policy, own.features, own.mask, self._generator)
            inputs = self.view.inputs_with_own(name, features_of(batch), actions_of(batch), action)
            learner.q.requires_grad_(False)
            loss = -mean_valid(learner.q.judges[0](inputs).squeeze(-1), own.valid)
            learner.actor_optimizer.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]
            learner.q.requires_grad_(True)
            require_finite(float(loss.detach()), "policy", "actor_lr")
            norm = learner.actor_optimizer.step()
            prefix = self._prefix(name)
            metrics |= {f"{prefix}policy/loss": float(loss.detach()), f"{prefix}policy/gradient_norm": norm}
        for learner in self.groups.values():
            learner.follow()
        return metrics


class TD3(DDPG[TD3Params]):
    """Twin Q-networks, smoothed target actions, and a policy that waits for its critics."""

    num_q = 2

    @property
    def policy_frequency(self) -> int:
        return self.params.policy_frequency

    def target_actions(self, learner: GroupLearner, own: GroupBatch) -> Tensor:
        exact = super().target_actions(learner, own)
        noise = torch.randn(exact.shape, generator=self._generator) * self.params.policy_noise
        return (exact + noise.clamp(-self.params.noise_clip, self.params.noise_clip)).clamp(-1.0, 1.0)


def exploration_noise(params: OffPolicyParams) -> float:
    """Deviation of the noise that is added when acting, in units of half the action range."""
    if isinstance(params, TD3Params):
        return params.exploration_noise
    return params.noise_scale if isinstance(params, DDPGParams) else 0.0
