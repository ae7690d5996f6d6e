"""IMPALA (Espeholt et al., 2018): an actor-critic with V-trace, one pass of the policy over each rollout.

    L_π = −E[ρ Â log π(a)] − c_H E[H(π)]

With `normalize_advantages`, Â is normalised before it is weighed, and counts by its ρ in that: what is subtracted is a
baseline. A constant b taken from ρ Â instead would add −b E_μ[∇ log π(a)], which moves the policy along what μ happened to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.algorithms.losses import LogLikelihood, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.updates.torch_update import Estimates
from relayrl.algorithms.vtrace.vtrace_algorithm import VTraceAlgorithm
from relayrl.algorithms.vtrace.vtrace_params import IMPALAParams

if TYPE_CHECKING:
    import numpy as np

    from relayrl.algorithms.vtrace.vtrace_returns import VTrace
    from relayrl.data.trees import Array
    from relayrl.models.policy import ActorCritic


class IMPALA(VTraceAlgorithm):
    """Steps along the likelihood of what went well, weighed by V-trace."""

    def __init__(
        self, policy: ActorCritic, params: IMPALAParams, rng: np.random.Generator, backend: Backend = REFERENCE
    ) -> None:
        super().__init__(policy, params, rng, policy_passes=1, backend=backend)

    def objective(self) -> Objective:
        return Objective(LogLikelihood(), self.params.entropy_coef)

    def learned_from(self, found: VTrace, acted_logp: Array, current_logp: Array) -> Estimates:
        return Estimates(current_logp, found.advantage, found.target, found.rho)
