"""The gradient steps of an on-policy update in one call of the kernels (a few, where it is long), for MLPs on the CPU.

The actor and the critic share no parameters, so what comes out does not depend on which thread takes whose steps, nor when: the
critic's may go on beside the caller. The reference is `algorithms.torch_update`; tests hold every step to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch import nn

from relayrl.accelerator.array_kernels import AdamState, max_norm
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.action_head import ActionHead
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.box_heads import GaussianHead
from relayrl.models.compiled_head import has_kernels, part_sizes
from relayrl.models.compiled_perceptron import CompiledPerceptron, as_inputs, as_rows
from relayrl.models.compiled_perceptron import has_kernels as are_known
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.mlp_policy import judges_in_numpy, runs_in_numpy
from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import Activation
from relayrl.models.shared_rows import SharedRows

POLICY_SUMS = ("loss", "kl", "entropy", "clip_fraction", "gradient_norm")
VALUE_SUMS = ("loss", "gradient_norm")
_COUNTED = ("num_steps", *POLICY_SUMS)
ROWS_PER_CALL = 200_000
"""Rows passed over by one call: about a tenth of a second of work for small networks, after which an interrupt is seen."""

Sums = dict[str, float]
"""Numbers added up over the gradient steps of a network; `bad_loss` is the one that is not finite, or 0."""
Finish = Callable[[], tuple[Sums, Sums]]
"""Waits until all steps are taken; returns the sums of the policy and of the value."""


@dataclass(frozen=True, slots=True)
class LossPlan:
    """What is minimised, of the losses that the kernels know; without `clip_ratio`, the policy's is the log-likelihood."""

    clip_ratio: float | None
    entropy_coef: float
    value_clip: float | None
    kl_limit: float


class Rows(Protocol):
    """The rows that are trained on (`algorithms.minibatches.Batch`)."""

    features: Array
    action: Array
    mask: Array | None
    logp: Array
    advantage: Array
    target: Array
    old_value: Array

    @property
    def critic_features(self) -> Array | SharedRows: ...

    def __len__(self) -> int: ...


class Passes(Protocol):
    """Which rows are passed over when (`algorithms.minibatches.PassPlan`)."""

    @property
    def num_rows(self) -> int: ...

    @property
    def policy_passes(self) -> int: ...

    @property
    def value_passes(self) -> int: ...

    @property
    def minibatch_rows(self) -> int: ...

    def draw_order(self, num_passes: int) -> Array | None: ...


def minibatch_kernels(
    policy: ActorCritic, losses: LossPlan, pi_optimizer: AdamState, vf_optimizer: AdamState, betas: tuple[float, float]
) -> MinibatchKernels | None:
    """Kernels that train the policy; None where one of its parts is not exactly what they know, or there are none."""
    networks = [policy.actor, policy.critic]
    if not (has_kernels(policy.head) and judges_in_numpy(policy) and runs_in_numpy(*networks, learns=True)):
        return None
    head_job = _HEAD_JOBS[type(policy.head)](policy.head)
    perceptrons = [network for network in networks if isinstance(network, Perceptron)]
    is_trained = all(p.requires_grad and not p._backward_hooks for p in policy.actor_parameters())
    if not (is_trained and are_known(*perceptrons)):
        return None
    return MinibatchKernels(perceptrons, head_job, losses, (pi_optimizer, vf_optimizer), betas)


@dataclass(frozen=True, slots=True)
class HeadJob:
    """What the kernels need to know of a head."""

    job: dict[str, Any]
    action: Callable[[Array], Array]


def _categorical(head: Any) -> HeadJob:
    return HeadJob({"part_sizes": part_sizes(head)}, lambda action: _choices(action, head.start))


def _multi_categorical(head: Any) -> HeadJob:
    starts = np.array([part.start for part in head.parts])
    return HeadJob({"part_sizes": part_sizes(head)}, lambda action: _choices(action, starts))


def _gaussian(head: Any) -> HeadJob:
    return HeadJob({"part_sizes": (), "scale": head.half_range, "center": head.center}, as_rows)


def _choices(action: Array, start: Any) -> Array:
    return np.ascontiguousarray(action - start if np.any(start) else action, np.int64)


_HEAD_JOBS: dict[type[ActionHead], Callable[[Any], HeadJob]] = {
    CategoricalHead: _categorical,
    MultiCategoricalHead: _multi_categorical,
    GaussianHead: _gaussian,
}


class MinibatchKernels:
    """Trains the MLPs of an actor and a critic by minibatches, on their live parameters."""

    def __init__(
        self,
        networks: list[Perceptron],
        head: HeadJob,
        losses: LossPlan,
        optimizers: tuple[AdamState, AdamState],
        betas: tuple[float, float],
    ) -> None:
        self._head, self._losses, self._optimizers, self._betas = head, losses, optimizers, betas
        self._actor, self._critic = networks
        self._values = CompiledPerceptron(self._critic)

    def normalized_value(self, seen: Array | SharedRows) -> Array:
        """[M] the critic's output, in normalised returns."""
        return self._values.forward(seen)[:, 0].copy()

    def begin(self, rows: Rows, plan: Passes) -> Finish:
        """Take the plan's steps, those of the policy until the KL limit is exceeded; those of the value may be taken beside
        the caller, who is not to change the rows before they are finished."""
        totals = dict.fromkeys((*_COUNTED, "bad_loss"), 0.0), dict.fromkeys((*_COUNTED, "bad_loss"), 0.0)
        passes_per_call = max(ROWS_PER_CALL // len(rows), 1)
        pi_left, vf_left = plan.policy_passes, plan.value_passes
        while pi_left or vf_left:
            passes = min(pi_left, passes_per_call), min(vf_left, passes_per_call)
            steps = self._begin_steps(rows, plan, passes)
            pi_left, vf_left = pi_left - passes[0], vf_left - passes[1]
            if not (pi_left or vf_left):
                return partial(self._finish, steps, totals)
            pi_sums, vf_sums = self._finish(steps, totals)
            if pi_sums["is_stopped"]:
                pi_left = 0
            if not math.isfinite(pi_sums["bad_loss"] + vf_sums["bad_loss"]):
                break
        return lambda: totals

    def _begin_steps(self, rows: Rows, plan: Passes, passes: tuple[int, int]) -> Any:
        """An `Update` of so many passes of policy and value. It holds the arrays that its steps read."""
        module = kernels()
        assert module is not None
        order = plan.draw_order(max(passes))
        pi_rows, vf_rows = (_passed(plan, num_passes, order) for num_passes in passes)
        value_job = self._value_job(rows, plan.minibatch_rows)
        return module.Update(self._policy_job(rows) | pi_rows, value_job | vf_rows, num_threads())

    def _finish(self, steps: Any, totals: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
        """Add the sums over the steps to `totals`, with why there were no more."""
        for optimizer, total, sums in zip(self._optimizers, totals, steps.finish(), strict=True):
            optimizer.num_steps = sums["adam_steps"]
            total.update({name: total[name] + sums[name] for name in _COUNTED})
            total.update({name: sums[name] for name in ("bad_loss", "is_stopped")})
        return totals

    def _policy_job(self, rows: Rows) -> dict[str, Any]:
        losses = self._losses
        return {
            **self._job(self._actor, self._optimizers[0]),
            **_inputs(rows.features, len(rows)),
            **self._head.job,
            "is_surrogate": losses.clip_ratio is not None,
            "clip_ratio": 0.0 if losses.clip_ratio is None else losses.clip_ratio,
            "entropy_coef": losses.entropy_coef,
            "kl_limit": losses.kl_limit,
            "action": self._head.action(rows.action),
            "mask": None if rows.mask is None else np.ascontiguousarray(rows.mask),
            "logp": as_rows(rows.logp),
            "advantage": as_rows(rows.advantage),
        }

    def _value_job(self, rows: Rows, minibatch_rows: int) -> dict[str, Any]:
        clip = self._losses.value_clip
        return {
            **self._job(self._critic, self._optimizers[1]),
            **_inputs(rows.critic_features, minibatch_rows),
            "clip": -1.0 if clip is None else clip,
            "target": as_rows(rows.target),
            "old_value": as_rows(rows.old_value),
        }

    def _job(self, network: Perceptron, optimizer: AdamState) -> dict[str, Any]:
        """What both networks' jobs hold: shape, Adam's state."""
        linears: list[nn.Linear] = network.linears()
        return {
            "sizes": (linears[0].in_features, *(layer.out_features for layer in linears)),
            "is_tanh": network.activation is Activation.TANH,
            "vector": optimizer.vector.numpy(),
            "first_moment": optimizer.first_moment.numpy(),
            "second_moment": optimizer.second_moment.numpy(),
            "num_steps": optimizer.num_steps,
            "learning_rate": optimizer.lr,
            "beta1": self._betas[0],
            "beta2": self._betas[1],
            "epsilon": optimizer.epsilon,
            "max_norm": max_norm(optimizer),
        }


def _passed(plan: Passes, num_passes: int, order: Array | None) -> dict[str, Any]:
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
