"""Proximal policy optimisation (Schulman et al., 2017), with a separate critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend, OnPolicyAlgorithm
from relayrl.algorithms.on_policy_params import PPOParams

if TYPE_CHECKING:
    import numpy as np

    from relayrl.data.columns import Rollout
    from relayrl.data.trees import Array
    from relayrl.models.policy import ActorCritic


class PPO(OnPolicyAlgorithm):
    """Several passes over each rollout, with a clipped loss that keeps the policy near the one that acted."""

    params: PPOParams

    def __init__(
        self, policy: ActorCritic, params: PPOParams, rng: np.random.Generator, backend: Backend = REFERENCE
    ) -> None:
        passes = {"policy_passes": params.train_pi_iters, "value_passes": params.train_vf_iters}
        super().__init__(policy, params, rng, **passes, backend=backend)

    def objective(self) -> Objective:
        params, loss = self.params, ClippedSurrogate(self.params.clip_ratio)
        return Objective(loss, params.entropy_coef, params.value_clip, params.target_kl)

    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        return self.gae(rollout, value, next_value, gamma=self.params.gamma, lam=self.params.lam)
