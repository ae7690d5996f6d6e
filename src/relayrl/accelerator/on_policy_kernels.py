"""The fastest way to carry an on-policy algorithm out (`FASTEST`): kernels where they know its parts, the reference elsewhere.

The gradient steps of an update are one call of the kernels (a few, where it is long), for MLPs on the CPU.
The actor and the critic share no parameters, so what comes out does not depend on which thread takes whose steps, nor when: the
critic's may go on beside the caller. The reference is `algorithms.updates.torch_update`; tests hold every step to it.

Taken are policies, heads, losses, objectives and optimisers of exactly RelayRL's own types. A subclass, or one of them with a
changed method, a hook or a frozen parameter, is obeyed by leaving it to the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from relayrl.accelerator.adam_kernel import accelerate_steps
from relayrl.accelerator.compiled_mlp import CompiledMLP, as_inputs, as_rows
from relayrl.accelerator.compiled_mlp import has_kernels as are_known
from relayrl.accelerator.team_kernels import fastest_team_update
from relayrl.algorithms import returns
from relayrl.algorithms.losses import ClippedSurrogate, LogLikelihood, Objective, require_finite
from relayrl.algorithms.on_policy import Backend
from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.algorithms.updates.image_update import reference_update
from relayrl.algorithms.updates.torch_update import Batch, Finish, Metrics, PassPlan, TorchUpdate
from relayrl.compiled.drawn_ahead import DrawnAhead
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.box_heads import GaussianHead
from relayrl.models.heads.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.network_settings import Activation
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, is_plain
from relayrl.models.networks.shared_rows import SharedRows
from relayrl.models.policy import ActorCritic
from relayrl.models.teams.team_policy import TeamActorCritic

_POLICY_METRICS = ("loss", "kl", "entropy", "clip_fraction", "gradient_norm")
_VALUE_METRICS = ("loss", "gradient_norm")
_COUNTED = ("num_steps", *_POLICY_METRICS)
ROWS_PER_CALL = 200_000
"""Rows passed over by one call: about a tenth of a second of work for small networks, after which an interrupt is seen."""

MIN_ORDER_AHEAD, MAX_ORDER_AHEAD = 20_000, 1 << 22
"""Numbers of the passes' permutations for which it is worth starting a thread, and up to which they may wait in memory."""

Totals = tuple[dict[str, float], dict[str, float]]
"""Numbers added up over the gradient steps of the policy and of the value."""


@dataclass(frozen=True, slots=True)
class HeadJob:
    """What the kernels must know of a head."""

    part_sizes: tuple[int, ...]
    """How many actions each choice has; none for a normal distribution."""
    starts: Any
    """The first action of each choice."""
    scales: dict[str, Array]

    def action(self, action: Array) -> Array:
        """Actions as the kernels take them."""
        if not self.part_sizes:
            return as_rows(action)
        return np.ascontiguousarray(action - self.starts if np.any(self.starts) else action, np.int64)


def _choice(head: Any) -> HeadJob:
    return HeadJob((head.num_outputs,), head.start, {})


def _choices(head: Any) -> HeadJob:
    starts = np.array([part.start for part in head.parts])
    return HeadJob(tuple(part.num_outputs for part in head.parts), starts, {})


def _normal(head: Any) -> HeadJob:
    return HeadJob((), 0, {"scale": head.half_range, "center": head.center})


_HEAD_JOBS: dict[type[ActionHead], Callable[[Any], HeadJob]] = {
    CategoricalHead: _choice,
    MultiCategoricalHead: _choices,
    GaussianHead: _normal,
}
_POLICIES, _TEAM_POLICIES, _HEADS = BuiltIns(ActorCritic), BuiltIns(TeamActorCritic), BuiltIns(*_HEAD_JOBS)
_CLIPPED, _PLAIN, _OBJECTIVES = BuiltIns(ClippedSurrogate), BuiltIns(LogLikelihood), BuiltIns(Objective)
_OPTIMIZERS = BuiltIns(FlatAdam)


def kernel_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> KernelUpdate | None:
    """An update by kernels; None where a part is not exactly what they know, or there are none."""
    module, loss = kernels(), objective.policy_loss
    is_known = (
        module is not None
        and (policy in _POLICIES or policy in _TEAM_POLICIES)
        and policy.image_encoder is None
        and policy.head in _HEADS
        and objective in _OBJECTIVES
        and (loss in _CLIPPED or loss in _PLAIN)
        and pi_optimizer in _OPTIMIZERS
        and vf_optimizer in _OPTIMIZERS
        and all(p.requires_grad and not p._backward_hooks for p in policy.actor_parameters())
    )
    if module is None or not is_known:
        return None
    head, actor, critic = _HEAD_JOBS[type(policy.head)](policy.head), _mlp(policy.actor), _mlp(policy.critic)
    networks = [network for network in (actor, critic) if network is not None]
    if actor is None or len(head.part_sizes) > module.MAX_PARTS or not are_known(*networks):
        return None
    if critic is None and policy not in _TEAM_POLICIES:
        return None
    return KernelUpdate(policy, objective, pi_optimizer, vf_optimizer, head, actor, critic)


def _mlp(network: nn.Module) -> MLP | None:
    """A network that is an unchanged MLP on the CPU, all of which learns."""
    is_known = is_plain(network) and all(p.requires_grad for p in network.parameters())
    return network if is_known and isinstance(network, MLP) else None


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    gamma: float,
    lam: float,
) -> Array:
    """`returns.gae`, in one call where every lane acts on every row."""
    module = kernels()
    if module is None or not valid.all():
        columns = reward, value, next_value, terminated, truncated, valid
        return np.asarray(returns.gae(*columns, gamma=gamma, lam=lam))
    out = np.empty(reward.shape, np.float32)
    numbers = [np.ascontiguousarray(column, np.float32) for column in (reward, value, next_value)]
    flags = [np.ascontiguousarray(flag, np.bool_) for flag in (terminated, truncated)]
    module.advantages(*reward.shape, *numbers, *flags, gamma, lam, out)
    return out


class KernelUpdate(TorchUpdate):
    """`TorchUpdate`, whose values and gradient steps are the kernels'; made by `kernel_update`, which knows for what.

    Of a team's policy they take the actor's steps alone: `team_kernels` has those of its critic."""

    def __init__(
        self,
        policy: ActorCritic,
        objective: Objective,
        pi_optimizer: FlatAdam,
        vf_optimizer: FlatAdam,
        head: HeadJob,
        actor: MLP,
        critic: MLP | None,
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer)
        self._head, self._actor_shape = head, _shape(actor)
        self._critic = None if critic is None else (_shape(critic), CompiledMLP(critic))
        self._next_order: DrawnAhead | None = None

    def value(self, seen: Array | SharedRows) -> Array:
        if self._critic is None:
            return super().value(seen)
        normalized = torch.from_numpy(self._critic[1].forward(seen)[:, 0])
        return np.asarray(self.policy.in_units_of_reward(normalized).numpy())

    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        if self._critic is None and plan.value_passes:
            return super().begin(batch, plan)
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
        order = self._draw_order(plan, max(passes))
        pi_rows, vf_rows = (_rows(plan, num_passes, order) for num_passes in passes)
        value_job = None
        if self._critic is not None:
            value_job = self._value_job(self._critic[0], batch, plan.minibatch_rows) | vf_rows
        steps = module.Update(self._policy_job(batch) | pi_rows, value_job, num_threads())
        self._draw_next_order(plan, max(passes))
        return steps

    def _draw_order(self, plan: PassPlan, num_passes: int) -> Array | None:
        ahead, self._next_order = self._next_order, None
        drawn = None if ahead is None else ahead.take(_purpose(plan, num_passes), plan.rng)
        return plan.draw_order(num_passes) if drawn is None else drawn

    def _draw_next_order(self, plan: PassPlan, num_passes: int) -> None:
        """Begin with that of the next update: a number of a permutation takes 8 ns."""
        is_worth_it = MIN_ORDER_AHEAD <= plan.num_rows * num_passes <= MAX_ORDER_AHEAD
        purpose = *_, has_order = _purpose(plan, num_passes)
        if has_order and is_worth_it and DrawnAhead.is_possible(plan.rng):
            self._next_order = DrawnAhead(
                lambda copy: replace(plan, rng=copy).draw_order(num_passes), purpose, plan.rng
            )

    def _finish_steps(self, steps: Any, totals: Totals) -> bool:
        """Add the sums over the steps to `totals`; whether the policy's were stopped by the KL limit."""
        own = steps.finish()
        self._pi_optimizer.num_steps = own[0]["adam_steps"]
        if self._critic is not None:
            self._vf_optimizer.num_steps = own[1]["adam_steps"]
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
        loss = self.objective.policy_loss
        clip_ratio = loss.clip_ratio if isinstance(loss, ClippedSurrogate) else None
        return {
            **self._actor_shape,
            **_adam(self._pi_optimizer),
            **_inputs(batch.features, len(batch)),
            **self._head.scales,
            "part_sizes": self._head.part_sizes,
            "is_surrogate": clip_ratio is not None,
            "clip_ratio": clip_ratio or 0.0,
            "entropy_coef": self.objective.entropy_coef,
            "kl_limit": self.objective.kl_limit,
            "action": self._head.action(batch.action),
            "mask": None if batch.mask is None else np.ascontiguousarray(batch.mask),
            "logp": as_rows(batch.logp),
            "advantage": as_rows(batch.advantage),
        }

    def _value_job(self, shape: dict[str, Any], batch: Batch, minibatch_rows: int) -> dict[str, Any]:
        clip = self.objective.value_clip
        return {
            **shape,
            **_adam(self._vf_optimizer),
            **_inputs(batch.critic_features, minibatch_rows),
            "clip": -1.0 if clip is None else clip,
            "target": as_rows(batch.target),
            "old_value": as_rows(batch.old_value),
        }


def _purpose(plan: PassPlan, num_passes: int) -> tuple[int, int, bool]:
    """All that `PassPlan.draw_order` depends on."""
    return plan.num_rows, num_passes, plan.minibatch_rows < plan.num_rows


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


def _shape(network: MLP) -> dict[str, Any]:
    """What the kernels must know of a network besides its parameters."""
    linears = network.linears()
    sizes = linears[0].in_features, *(layer.out_features for layer in linears)
    return {"sizes": sizes, "is_tanh": network.activation is Activation.TANH}


def _adam(optimizer: FlatAdam) -> dict[str, Any]:
    """A network's parameters and Adam's state."""
    return {
        "vector": optimizer.vector.numpy(),
        "first_moment": optimizer.first_moment.numpy(),
        "second_moment": optimizer.second_moment.numpy(),
        "num_steps": optimizer.num_steps,
        "learning_rate": optimizer.lr,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": optimizer.epsilon,
        "max_norm": optimizer.max_norm,
    }


def _means_of(totals: Totals) -> Metrics:
    """Metrics of an update: means over the gradient steps of each network."""
    pi, vf = totals
    return {
        **_means("policy", pi, _POLICY_METRICS),
        **_means("value", vf, _VALUE_METRICS),
        "policy/gradient_steps": pi["num_steps"],
        "value/gradient_steps": vf["num_steps"],
    }


def _means(network: str, sums: dict[str, float], names: tuple[str, ...]) -> Metrics:
    steps = sums["num_steps"]
    return {f"{network}/{name}": sums[name] / steps for name in names} if steps else {}


def fastest_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> TorchUpdate:
    """The fastest update of a policy; a kernel steps the optimisers of one that no kernel trains."""
    found = kernel_update(policy, objective, pi_optimizer, vf_optimizer)
    if found is not None:
        return found
    accelerate_steps([pi_optimizer, vf_optimizer])
    return reference_update(policy, objective, pi_optimizer, vf_optimizer)


FASTEST = Backend(gae, fastest_update, fastest_team_update)
"""What runs are made with."""
