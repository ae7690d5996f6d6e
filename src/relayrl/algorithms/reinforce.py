"""REINFORCE (Williams, 1992): one step along the likelihood of what went well, with or without a learned baseline.

Without a baseline, an action's weight is its reward-to-go, which is known for episodes that ended inside the rollout: only
their rows are trained on, so `time_horizon` should be several episodes long. With one, it is a GAE advantage, and what was cut
bootstraps from the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from relayrl.algorithms.losses import LogLikelihood, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend, OnPolicyAlgorithm
from relayrl.algorithms.on_policy_params import REINFORCEParams

if TYPE_CHECKING:
    from relayrl.data.columns import Rollout
    from relayrl.data.trees import Array
    from relayrl.models.policy import ActorCritic


class REINFORCE(OnPolicyAlgorithm):
    """One pass of the policy over each rollout."""

    params: REINFORCEParams

    def __init__(
        self, policy: ActorCritic, params: REINFORCEParams, rng: np.random.Generator, backend: Backend = REFERENCE
    ) -> None:
        value_passes = params.train_vf_iters if params.with_vf_baseline else 0
        super().__init__(policy, params, rng, policy_passes=1, value_passes=value_passes, backend=backend)

    def objective(self) -> Objective:
        return Objective(LogLikelihood(), self.params.entropy_coef)

    def usable_rows(self, rollout: Rollout) -> Array:
        if self.params.with_vf_baseline:
            return rollout.valid
        ends = rollout.ended & ~rollout.failed
        ended_later = np.flip(np.maximum.accumulate(np.flip(ends, 0), 0), 0)
        return np.asarray(rollout.valid & ended_later)

    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        gamma = self.params.gamma
        if self.params.with_vf_baseline:
            return self.gae(rollout, value, next_value, gamma=gamma, lam=self.params.lam)
        # With V = 0 and λ = 1, GAE is the discounted reward-to-go.
        nothing = np.zeros_like(value)
        return self.gae(rollout, nothing, nothing, gamma=gamma, lam=1.0)
