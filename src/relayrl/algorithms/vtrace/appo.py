"""Asynchronous PPO: several passes with PPO's clipped loss over what V-trace makes of older policies' rollouts.

The loss clips the ratio to the newest policy, not to the one that acted: V-trace's weight takes care of the latter (Luo et al.,
2020; Hilton et al., 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.params import APPOParams
from relayrl.algorithms.vtrace.vtrace_algorithm import VTraceAlgorithm

if TYPE_CHECKING:
    import numpy as np

    from relayrl.models.policy import ActorCritic


class APPO(VTraceAlgorithm):
    """PPO on V-trace's advantages."""

    def __init__(
        self, policy: ActorCritic, params: APPOParams, rng: np.random.Generator, backend: Backend = REFERENCE
    ) -> None:
        self.params = params
        loss = ClippedSurrogate(params.clip_ratio)
        objective = Objective(loss, params.entropy_coef, params.value_clip, params.target_kl)
        super().__init__(policy, params, objective, rng, policy_passes=params.train_pi_iters, backend=backend)
