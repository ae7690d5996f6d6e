"""Passes over a batch in shuffled minibatches: which rows when, and the gradient steps of any policy.

`StepwisePasses` takes one step at a time through `Gradients`; `compiled_passes` does the same work in one call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from relayrl.algorithms.divergence import NOT_FINITE_IS_RAISED, require_finite
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.policy_gradients import Batch, Gradients, Metrics
from relayrl.data.trees import Array


@dataclass(frozen=True, slots=True)
class PassPlan:
    """How often the policy and the value see a batch, and in minibatches of how many rows."""

    num_rows: int
    policy_passes: int
    value_passes: int
    minibatch_rows: int
    rng: np.random.Generator

    @property
    def num_passes(self) -> int:
        """Of whichever has more."""
        return max(self.policy_passes, self.value_passes)

    def draw_order(self, num_passes: int) -> Array | None:
        """[P, M] the rows of the next passes, in the order of each; None where a single minibatch needs no order."""
        if self.minibatch_rows >= self.num_rows:
            return None
        return np.stack([self.rng.permutation(self.num_rows) for _ in range(num_passes)])


def make_plan(
    rng: np.random.Generator, num_rows: int, *, policy_passes: int, value_passes: int, num_minibatches: int
) -> PassPlan:
    """A plan for `num_rows` rows."""
    return PassPlan(num_rows, policy_passes, value_passes, -(-num_rows // num_minibatches), rng)


Finish = Callable[[], Metrics]
"""Waits for the rest of an update that was begun; gives its metrics."""


class MinibatchPasses(ABC):
    """Trains an actor and a critic on a batch."""

    @abstractmethod
    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        """Take the plan's gradient steps, those of the policy until the KL limit is exceeded; those of the value may be taken
        beside the caller, who is not to change the batch before they are finished."""


class StepwisePasses(MinibatchPasses):
    """One minibatch after the other, first the policy's step and then the value's."""

    def __init__(self, gradients: Gradients, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam) -> None:
        self._gradients, self._pi_optimizer, self._vf_optimizer = gradients, pi_optimizer, vf_optimizer

    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        metrics = self._run(batch, plan)
        return lambda: metrics

    @NOT_FINITE_IS_RAISED
    def _run(self, batch: Batch, plan: PassPlan) -> Metrics:
        sums: Metrics = {}
        counts = {"policy": 0, "value": 0}
        trains_pi = True
        for i in range(plan.num_passes):
            trains_pi = trains_pi and i < plan.policy_passes
            trains_vf = i < plan.value_passes
            if not (trains_pi or trains_vf):
                break
            order = plan.draw_order(1)
            shuffled = batch if order is None else batch.rows(order[0])
            for start in range(0, len(batch), plan.minibatch_rows):
                rows = shuffled.rows(slice(start, start + plan.minibatch_rows))
                pi_metrics = self._policy_step(rows) if trains_pi else None
                trains_pi = pi_metrics is not None
                vf_metrics = self._value_step(rows) if trains_vf else None
                counts["policy"] += pi_metrics is not None
                counts["value"] += vf_metrics is not None
                for name, number in ((pi_metrics or {}) | (vf_metrics or {})).items():
                    sums[name] = sums.get(name, 0.0) + number
        metrics = {name: total / counts[name.split("/")[0]] for name, total in sums.items()}
        return metrics | {f"{network}/gradient_steps": float(count) for network, count in counts.items()}

    def _policy_step(self, rows: Batch) -> Metrics | None:
        metrics = self._gradients.policy_gradient(rows)
        if metrics is not None:
            require_finite(metrics["policy/loss"], "policy", "pi_lr")
            metrics["policy/gradient_norm"] = self._pi_optimizer.step()
        return metrics

    def _value_step(self, rows: Batch) -> Metrics:
        metrics = self._gradients.value_gradient(rows)
        require_finite(metrics["value/loss"], "value", "vf_lr")
        metrics["value/gradient_norm"] = self._vf_optimizer.step()
        return metrics
