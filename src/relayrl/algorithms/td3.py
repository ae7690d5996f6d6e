"""TD3 (Fujimoto et al., 2018) and DDPG (Lillicrap et al., 2016), which is TD3 without its three additions.

    y  = r + γ min_i Q′_i(s′, clip(π′(s′) + ε)),   ε = clip(N(0, policy_noise), ± noise_clip)
    L_Q = Σ_i ½ E[(Q_i(s, a) − y)²]
    L_π = −E[Q_1(s, π(s))], every `policy_frequency` steps of the critics, together with all targets

Actions and noise are in units of half the action range. Discrete choices are SAC's and the on-policy algorithms' business: a
deterministic policy over one-hot vectors saturates before its critic has learned anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayrl.algorithms.off_policy import GroupBatch, Metrics, NextActions, OffPolicyAlgorithm, P
from relayrl.algorithms.params import DDPGParams, OffPolicyParams, TD3Params
from relayrl.data.trees import Array


class DDPG(OffPolicyAlgorithm[P]):
    """One Q-network, a step of the policy with every step of it, exact target actions."""

    num_q = 1
    num_policy_judges = 1
    has_target_policy = True

    @property
    def policy_frequency(self) -> int:
        """Steps of the critics per step of the policy."""
        return 1

    def smoothed(self, action: Array) -> Array:
        """The target policy's action as the targets are asked about it."""
        return action

    def next_actions(self, group: str, own: GroupBatch) -> NextActions:
        exact = self.groups[group].choose_as_target(own.next_features, own.next_mask, self._rng).action
        return NextActions(self.smoothed(exact).reshape(own.action.shape))

    def update_policies(self, batch: Mapping[str, GroupBatch]) -> Metrics:
        if self._num_updates % self.policy_frequency:
            return {}
        metrics: Metrics = {}
        for name in self.groups:
            metrics |= self._update_policy(name, batch, entropy_weight=0.0)[0]
        for learner in self.groups.values():
            learner.follow()
        return metrics


class TD3(DDPG[TD3Params]):
    """Twin Q-networks, smoothed target actions, and a policy that waits for its critics."""

    num_q = 2

    @property
    def policy_frequency(self) -> int:
        return self.params.policy_frequency

    def smoothed(self, action: Array) -> Array:
        noise = self._rng.standard_normal(action.shape, dtype=np.float32) * np.float32(self.params.policy_noise)
        limit = np.float32(self.params.noise_clip)
        noisy = action + np.minimum(np.maximum(noise, -limit), limit)  # np.clip costs three times as much
        return np.asarray(np.minimum(np.maximum(noisy, np.float32(-1.0)), np.float32(1.0)))


def exploration_noise(params: OffPolicyParams) -> float:
    """Deviation of the noise that is added when acting, in units of half the action range."""
    if isinstance(params, TD3Params):
        return params.exploration_noise
    return params.noise_scale if isinstance(params, DDPGParams) else 0.0
