"""What V-trace algorithms have in common: advantages and value targets corrected for who acted (`vtrace_returns`).

Three policies take part: μ acted and recorded its log-probabilities, π is the newest when the update begins, and the one that
learns moves away from π. V-trace weighs every row by π/μ; the policy loss compares the one that learns with π. So a pass begins
with a ratio of 1, however old the data is. Where nobody recorded log-probabilities, π is taken to have acted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relayrl.algorithms.losses import Objective
from relayrl.algorithms.on_policy import Backend, Estimates, OnPolicyAlgorithm
from relayrl.algorithms.params import VTraceParams
from relayrl.algorithms.vtrace.vtrace_returns import MAX_LOG_RATIO, vtrace

if TYPE_CHECKING:
    from relayrl.algorithms.critics.joint_observations import CentralInputs
    from relayrl.algorithms.updates.torch_update import Evaluation, Finish
    from relayrl.data.columns import Rollout
    from relayrl.data.trees import Array
    from relayrl.models.policy import ActorCritic


class VTraceAlgorithm(OnPolicyAlgorithm):
    """Trains one `ActorCritic` from rollouts of older versions of it."""

    def __init__(
        self,
        policy: ActorCritic,
        params: VTraceParams,
        objective: Objective,
        rng: np.random.Generator,
        *,
        policy_passes: int,
        backend: Backend,
    ) -> None:
        passes = {"policy_passes": policy_passes, "value_passes": params.train_vf_iters}
        super().__init__(policy, params, objective, rng, **passes, backend=backend)
        self._vtrace = params
        self._ratios: list[Array] = []

    def begin(
        self,
        rollouts: list[Rollout],
        progress: float,
        central: list[CentralInputs] | None = None,
        fresh: Sequence[Array | None] | None = None,
    ) -> Finish:
        self._ratios = []
        finish = super().begin(rollouts, progress, central, fresh)
        ratio = np.concatenate([np.ones(0, np.float32), *self._ratios])
        if not len(ratio):
            return finish
        weights = {
            "policy/importance_ratio": float(ratio.mean()),
            "policy/importance_clip_fraction": float((ratio > self._vtrace.rho_bar).mean()),
        }
        return lambda: weights | finish()

    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        return self.gae(rollout, value, next_value, gamma=self._vtrace.gamma, lam=self._vtrace.lam)

    def estimates(self, rollout: Rollout, evaluation: Evaluation, next_value: Array) -> Estimates:
        if rollout.logp is None:
            return super().estimates(rollout, evaluation, next_value)
        params = self._vtrace
        current = self._update.current_logp(rollout, evaluation)
        log_ratio = current.reshape(rollout.logp.shape) - rollout.logp
        self._ratios.append(np.exp(np.minimum(log_ratio[rollout.valid], MAX_LOG_RATIO)))
        advantage, target = vtrace(
            rollout.reward,
            evaluation.value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            log_ratio,
            gamma=params.gamma,
            lam=params.lam,
            rho_bar=params.rho_bar,
            c_bar=params.c_bar,
        )
        return Estimates(current, advantage, target)
