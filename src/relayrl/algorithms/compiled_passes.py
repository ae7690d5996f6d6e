"""The gradient steps of an update in one call of the compiled kernels (a few, where it is long), for MLPs on the CPU.

The actor and the critic share no parameters, so what comes out does not depend on which thread takes whose steps, nor when: the
critic's may go on beside the caller. Tests hold every step to `StepwisePasses` and its gradients to autograd.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from relayrl.algorithms.divergence import require_finite
from relayrl.algorithms.minibatch_passes import Finish, MinibatchPasses, PassPlan
from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.algorithms.policy_gradients import LOSSES, OBJECTIVES, Batch, ClippedSurrogate, Metrics, Objective
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.action_head import ActionHead
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.box_heads import GaussianHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.compiled_head import has_kernels
from relayrl.models.compiled_perceptron import as_inputs, as_rows
from relayrl.models.compiled_perceptron import has_kernels as are_known
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.numpy_policy import judges_in_numpy
from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import Activation
from relayrl.models.shared_rows import SharedRows

_OPTIMIZERS = BuiltIns(FlatAdam)
_POLICY_METRICS = ("loss", "kl", "entropy", "clip_fraction", "gradient_norm")
_VALUE_METRICS = ("loss", "gradient_norm")
Totals = tuple[dict[str, float], dict[str, float]]
_COUNTED = ("num_steps", *_POLICY_METRICS)
ROWS_PER_CALL = 200_000
"""Rows passed over by one call: about a tenth of a second of work for small networks, after which an interrupt is seen."""


def runs_compiled(policy: ActorCritic, objective: Objective, *optimizers: FlatAdam) -> bool:
    """Whether the kernels are there, and know the policy's networks and head, the objective, its loss and the optimisers."""
    if not has_kernels(policy.head) or not judges_in_numpy(policy, learns=True):
        return False
    assert isinstance(policy.actor, Perceptron)
    assert isinstance(policy.critic, Perceptron)
    return (
        are_known(policy.actor, policy.critic)
        and objective in OBJECTIVES
        and objective.policy_loss in LOSSES
        and all(optimizer in _OPTIMIZERS for optimizer in optimizers)
    )


class CompiledPasses(MinibatchPasses):
    """The compiled form of `StepwisePasses`, for a policy and objective for which `runs_compiled`."""

    def __init__(
        self, policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
    ) -> None:
        self._policy, self._objective = policy, objective
        self._pi_optimizer, self._vf_optimizer = pi_optimizer, vf_optimizer

    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        totals = dict.fromkeys(_COUNTED, 0.0), dict.fromkeys(_COUNTED, 0.0)
        passes_per_call = max(ROWS_PER_CALL // len(batch), 1)
        pi_left, vf_left = plan.policy_passes, plan.value_passes
        while pi_left or vf_left:
            passes = min(pi_left, passes_per_call), min(vf_left, passes_per_call)
            steps = self._begin_steps(batch, plan, passes)
            pi_left, vf_left = pi_left - passes[0], vf_left - passes[1]
            if not (pi_left or vf_left):
                return partial(self._finish, steps, totals)
            if self._finish_steps(steps, totals):
                pi_left = 0
        return partial(_means_of, totals)

    def _begin_steps(self, batch: Batch, plan: PassPlan, passes: tuple[int, int]) -> Any:
        """An `Update` of so many passes of policy and value. It holds the arrays that its steps read."""
        module = kernels()
        assert module is not None
        order = plan.draw_order(max(passes))
        pi_rows, vf_rows = (_rows(plan, num_passes, order) for num_passes in passes)
        value_job = self._value_job(batch, plan.minibatch_rows)
        return module.Update(self._policy_job(batch) | pi_rows, value_job | vf_rows, num_threads())

    def _finish_steps(self, steps: Any, totals: Totals) -> bool:
        """Add the sums over the steps to `totals`; whether the policy's were stopped by the KL limit."""
        own = steps.finish()
        self._pi_optimizer.num_steps, self._vf_optimizer.num_steps = (sums["adam_steps"] for sums in own)
        for total, sums in zip(totals, own, strict=True):
            for name in _COUNTED:
                total[name] += sums[name]
        require_finite(own[0]["bad_loss"], "policy", "pi_lr")
        require_finite(own[1]["bad_loss"], "value", "vf_lr")
        return bool(own[0]["is_stopped"])

    def _finish(self, steps: Any, totals: Totals) -> Metrics:
        self._finish_steps(steps, totals)
        return _means_of(totals)

    def _policy_job(self, batch: Batch) -> dict[str, Any]:
        objective, head, loss = self._objective, self._policy.head, self._objective.policy_loss
        limit = math.inf if objective.target_kl is None else 1.5 * objective.target_kl
        job = _job(self._policy.actor, self._pi_optimizer) | _inputs(batch.features, len(batch))
        job |= {
            "part_sizes": head.part_sizes,
            "is_surrogate": isinstance(loss, ClippedSurrogate),
            "clip_ratio": loss.clip_ratio if isinstance(loss, ClippedSurrogate) else 0.0,
            "entropy_coef": objective.entropy_coef,
            "kl_limit": limit,
            "action": _action(head, batch.action),
            "mask": None if batch.mask is None else np.ascontiguousarray(batch.mask),
            "logp": as_rows(batch.logp),
            "advantage": as_rows(batch.advantage),
        }
        if isinstance(head, GaussianHead):
            job |= {"scale": head.half_range, "center": head.center}
        return job

    def _value_job(self, batch: Batch, minibatch_rows: int) -> dict[str, Any]:
        clip = self._objective.value_clip
        return {
            **_job(self._policy.critic, self._vf_optimizer),
            **_inputs(batch.critic_features, minibatch_rows),
            "clip": -1.0 if clip is None else clip,
            "target": as_rows(batch.target),
            "old_value": as_rows(batch.old_value),
        }


def _rows(plan: PassPlan, num_passes: int, order: Array | None) -> dict[str, Any]:
    """Which rows a job passes over."""
    return {
        "order": None if order is None or not num_passes else order[:num_passes],
        "num_rows": plan.num_rows,
        "num_passes": num_passes,
        "minibatch_rows": plan.minibatch_rows,
    }


def _inputs(seen: Array | SharedRows, minibatch_rows: int) -> dict[str, Any]:
    """What a network sees."""
    inputs, is_factored = as_inputs(seen, minibatch_rows)
    return {"inputs": inputs, "is_factored": is_factored}


def _job(network: Any, optimizer: FlatAdam) -> dict[str, Any]:
    """What both networks' jobs hold: shape, Adam's state."""
    assert isinstance(network, Perceptron)
    linears = network.linears()
    return {
        "sizes": (linears[0].in_features, *(layer.out_features for layer in linears)),
        "is_tanh": network.activation is Activation.TANH,
        "vector": optimizer.vector.numpy(),
        "first_moment": optimizer.first_moment.numpy(),
        "second_moment": optimizer.second_moment.numpy(),
        "num_steps": optimizer.num_steps,
        "learning_rate": optimizer.lr,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": optimizer.epsilon,
        "max_norm": math.inf if optimizer.max_grad_norm is None else optimizer.max_grad_norm,
    }


def _action(head: ActionHead, action: Array) -> Array:
    if isinstance(head, CategoricalHead):
        return np.ascontiguousarray(action - head.start if head.start else action, np.int64)
    if isinstance(head, MultiCategoricalHead):
        return np.ascontiguousarray(action - np.array([part.start for part in head.parts]), np.int64)
    return as_rows(action)


def _means(network: str, sums: Any, names: tuple[str, ...]) -> Metrics:
    steps = sums["num_steps"]
    return {f"{network}/{name}": sums[name] / steps for name in names} if steps else {}


def _means_of(totals: Totals) -> Metrics:
    """Metrics of an update: means over the gradient steps of each network."""
    pi, vf = totals
    return {
        **_means("policy", pi, _POLICY_METRICS),
        **_means("value", vf, _VALUE_METRICS),
        "policy/gradient_steps": pi["num_steps"],
        "value/gradient_steps": vf["num_steps"],
    }
