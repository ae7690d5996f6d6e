"""What V-trace algorithms have in common: advantages and value targets corrected for who acted (`vtrace_returns`).

μ is the policy that acted and recorded its log-probabilities, π the newest one, which learns. Where nobody recorded any, π is
taken to have acted, and V-trace is GAE. How the loss goes on from there is the algorithm's: `learned_from`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relayrl.algorithms.on_policy import Backend, OnPolicyAlgorithm
from relayrl.algorithms.updates.torch_update import Estimates, Evaluation, Finish
from relayrl.algorithms.vtrace.vtrace_params import VTraceParams
from relayrl.algorithms.vtrace.vtrace_returns import VTrace, vtrace

if TYPE_CHECKING:
    from relayrl.algorithms.critics.joint_observations import CentralInputs
    from relayrl.data.columns import Rollout
    from relayrl.data.trees import Array
    from relayrl.models.policy import ActorCritic


class VTraceAlgorithm(OnPolicyAlgorithm):
    """Trains one `ActorCritic` from rollouts of older versions of it."""

    params: VTraceParams

    def __init__(
        self,
        policy: ActorCritic,
        params: VTraceParams,
        rng: np.random.Generator,
        *,
        policy_passes: int,
        backend: Backend,
    ) -> None:
        passes = {"policy_passes": policy_passes, "value_passes": params.train_vf_iters}
        super().__init__(policy, params, rng, **passes, backend=backend)
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
            "policy/importance_clip_fraction": float((ratio > self.params.rho_bar).mean()),
        }
        return lambda: weights | finish()

    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        return self.gae(rollout, value, next_value, gamma=self.params.gamma, lam=self.params.lam)

    def estimates(self, rollout: Rollout, evaluation: Evaluation, next_value: Array) -> Estimates:
        if rollout.logp is None:
            return super().estimates(rollout, evaluation, next_value)
        params = self.params
        current = self._update.current_logp(rollout, evaluation)
        log_ratio = current.reshape(rollout.logp.shape) - rollout.logp
        found = vtrace(
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
        self._ratios.append(found.ratio[rollout.valid])
        return self.learned_from(found, evaluation.logp, current)

    @abstractmethod
    def learned_from(self, found: VTrace, acted_logp: Array, current_logp: Array) -> Estimates:
        """What the loss takes: log-probabilities [M] are μ's and π's."""
