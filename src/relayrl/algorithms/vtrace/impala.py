"""IMPALA (Espeholt et al., 2018): an actor-critic with V-trace, one pass of the policy over each rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.algorithms.losses import LogLikelihood, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.params import IMPALAParams
from relayrl.algorithms.vtrace.vtrace_algorithm import VTraceAlgorithm

if TYPE_CHECKING:
    import numpy as np

    from relayrl.models.policy import ActorCritic


class IMPALA(VTraceAlgorithm):
    """Steps along the likelihood of what went well, weighed by V-trace."""

    def __init__(
        self, policy: ActorCritic, params: IMPALAParams, rng: np.random.Generator, backend: Backend = REFERENCE
    ) -> None:
        self.params = params
        objective = Objective(LogLikelihood(), params.entropy_coef)
        super().__init__(policy, params, objective, rng, policy_passes=1, backend=backend)
