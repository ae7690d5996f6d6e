"""An on-policy update whose gradient steps several learners take together.

Each learner has the policy, the optimisers and the whole batch. Of a minibatch of M rows, learner k differentiates its M_k:

    ∇L = Σ_k (M_k / M) ∇L_k

Every learner then takes the step with that sum, so all stay equal. The KL limit and metrics are those of the whole minibatch.
Beside one learner's steps only the order of sums differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from relayrl.algorithms.losses import Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.image_update import reference_update_of
from relayrl.algorithms.updates.torch_update import (
    Batch,
    Finish,
    PassPlan,
    StepMetrics,
    TorchUpdate,
    take_optimizer_steps,
)
from relayrl.models.policy import ActorCritic
from relayrl.training.learners.exchange import Exchange

_POLICY_METRICS = ("policy/loss", "policy/kl", "policy/entropy", "policy/clip_fraction")
_VALUE_METRICS = ("value/loss",)


@dataclass(frozen=True, slots=True)
class Work:
    """An update that the first learner begins: the state that it begins with, and what is passed over."""

    which: int
    policy: dict[str, Any]
    optimizers: tuple[dict[str, Any], dict[str, Any]]
    learning_rates: tuple[float, float]
    objective: Objective
    batch: Batch
    plan: PassPlan


class SplitSteps(TorchUpdate):
    """Goes before the class that makes the steps of a policy."""

    exchange: Callable[[], Exchange]
    """Connects with the other learners, where that is not done yet."""
    which: int

    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        optimizers = self._pi_optimizer, self._vf_optimizer
        states = optimizers[0].state_dict(), optimizers[1].state_dict()
        rates = optimizers[0].lr, optimizers[1].lr
        work = Work(self.which, self.policy.state_dict(), states, rates, self.objective, batch, plan)
        self.exchange().send(work)
        return super().begin(batch, plan)

    def join(self, work: Work) -> None:
        """Take part in an update that the first learner has begun."""
        self.policy.load_state_dict(work.policy)
        for optimizer, state, rate in zip(
            (self._pi_optimizer, self._vf_optimizer), work.optimizers, work.learning_rates, strict=True
        ):
            optimizer.load_state_dict(state)
            optimizer.lr = rate
        self.objective = work.objective
        super().begin(work.batch, work.plan)

    def take_step(self, rows: Batch, trains_pi: bool, trains_vf: bool) -> tuple[StepMetrics | None, StepMetrics | None]:
        exchange, whole = self.exchange(), self.objective
        own = rows.rows(exchange.part(len(rows)))
        self.objective = replace(whole, target_kl=None)  # decided by all rows
        try:
            found = self.gradients(own, trains_pi, trains_vf) if len(own) else ({}, {})
        finally:
            self.objective = whole
        pi, vf = self._summed(found, own.num_rows / rows.num_rows, trains_pi, trains_vf)
        if pi is not None and whole.is_exceeded_by(float(pi["policy/kl"])):
            pi = None
        take_optimizer_steps(pi, self._pi_optimizer, vf, self._vf_optimizer)
        return pi, vf

    def _summed(
        self, found: tuple[StepMetrics | None, StepMetrics | None], share: float, trains_pi: bool, trains_vf: bool
    ) -> tuple[StepMetrics | None, StepMetrics | None]:
        """The metrics of all rows; the gradients become those of all rows."""
        parts: list[torch.Tensor] = []
        for trains, metrics, optimizer, names in (
            (trains_pi, found[0], self._pi_optimizer, _POLICY_METRICS),
            (trains_vf, found[1], self._vf_optimizer, _VALUE_METRICS),
        ):
            if trains:
                parts.append(optimizer.gradient if metrics else torch.zeros_like(optimizer.gradient))
                own = [(metrics or {}).get(name, 0.0) for name in names]
                parts.append(torch.tensor(own, device=optimizer.gradient.device))
        total = torch.cat(parts).mul_(share)
        self.exchange().add_up(total)
        summed = iter(torch.split(total, [len(part) for part in parts]))
        pi = self._taken(summed, self._pi_optimizer, _POLICY_METRICS) if trains_pi else None
        vf = self._taken(summed, self._vf_optimizer, _VALUE_METRICS) if trains_vf else None
        return pi, vf

    @staticmethod
    def _taken(summed: Any, optimizer: FlatAdam, names: tuple[str, ...]) -> StepMetrics:
        optimizer.gradient.copy_(next(summed))
        return dict(zip(names, next(summed).tolist(), strict=True))


def split_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> SplitSteps:
    """The reference's update of a policy, in steps that learners share."""
    kind = reference_update_of(policy)
    shared = type(f"Split{kind.__name__}", (SplitSteps, kind), {})
    made: SplitSteps = shared(policy, objective, pi_optimizer, vf_optimizer)
    return made
