"""Asynchronous PPO: several passes with PPO's clipped loss over what V-trace makes of older policies' rollouts.

    L_π = −E[min(r Â, clip(r, 1 ± ε) Â)] − c_H E[H(π)],   r = π(a) / μ(a)

The ratio is that to the policy that acted. It is the importance weight of the row, so Â is not weighed again. Its clip keeps
the policy near those whose data is still to come; a clip around the newest policy would let it move on with every update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.updates.torch_update import Estimates
from relayrl.algorithms.vtrace.vtrace_algorithm import VTraceAlgorithm
from relayrl.algorithms.vtrace.vtrace_params import APPOParams

if TYPE_CHECKING:
    import numpy as np

    from relayrl.algorithms.vtrace.vtrace_returns import VTrace
    from relayrl.data.trees import Array
    from relayrl.models.policy import ActorCritic


class APPO(VTraceAlgorithm):
    """PPO on V-trace's advantages."""

    params: APPOParams

    def __init__(
        self, policy: ActorCritic, params: APPOParams, rng: np.random.Generator, backend: Backend = REFERENCE
    ) -> None:
        super().__init__(policy, params, rng, policy_passes=params.train_pi_iters, backend=backend)

    def objective(self) -> Objective:
        params, loss = self.params, ClippedSurrogate(self.params.clip_ratio)
        return Objective(loss, params.entropy_coef, params.value_clip, params.target_kl)

    def learned_from(self, found: VTrace, acted_logp: Array, current_logp: Array) -> Estimates:
        return Estimates(acted_logp, found.advantage, found.target)
