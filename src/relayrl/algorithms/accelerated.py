"""The fastest way to carry an on-policy algorithm out: the accelerator, where it knows the plan; the reference elsewhere.

What has exactly RelayRL's own types goes to the accelerator. A subclass of a loss, an objective or an optimiser, or one of them
with a changed method, is obeyed: it runs in torch, as do policies that the accelerator does not know.
"""

from __future__ import annotations

import numpy as np
import torch

from relayrl.accelerator import array_kernels
from relayrl.accelerator.minibatch_kernels import (
    POLICY_SUMS,
    VALUE_SUMS,
    LossPlan,
    MinibatchKernels,
    Sums,
    minibatch_kernels,
)
from relayrl.algorithms.adam import BETA1, BETA2, Adam
from relayrl.algorithms.divergence import require_finite
from relayrl.algorithms.losses import ClippedSurrogate, LogLikelihood, Objective
from relayrl.algorithms.minibatches import Batch, Finish, Metrics, PassPlan
from relayrl.algorithms.on_policy import Backend
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.recurrent_update import RecurrentUpdate
from relayrl.algorithms.returns import gae
from relayrl.algorithms.torch_update import TorchUpdate
from relayrl.data.trees import Array
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.built_in import BuiltIns
from relayrl.models.recurrent_policy import RecurrentActorCritic
from relayrl.models.shared_rows import SharedRows

_LOSSES, _OBJECTIVES = BuiltIns(ClippedSurrogate, LogLikelihood), BuiltIns(Objective)
_OPTIMIZERS = BuiltIns(Adam, FlatAdam)


class KernelUpdate(TorchUpdate):
    """`TorchUpdate`, whose values and gradient steps are the accelerator's."""

    def __init__(
        self,
        policy: ActorCritic,
        objective: Objective,
        pi_optimizer: Adam,
        vf_optimizer: Adam,
        kernels: MinibatchKernels,
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer)
        self._kernels = kernels

    def value(self, seen: Array | SharedRows) -> Array:
        normalized = torch.from_numpy(self._kernels.normalized_value(seen))
        return np.asarray(self.policy.in_units_of_reward(normalized).numpy())

    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        finish = self._kernels.begin(batch, plan)

        def finish_and_check() -> Metrics:
            pi, vf = finish()
            require_finite(pi["bad_loss"], "policy", "pi_lr")
            require_finite(vf["bad_loss"], "value", "vf_lr")
            return {
                **_means("policy", pi, POLICY_SUMS),
                **_means("value", vf, VALUE_SUMS),
                "policy/gradient_steps": pi["num_steps"],
                "value/gradient_steps": vf["num_steps"],
            }

        return finish_and_check


def _means(network: str, sums: Sums, names: tuple[str, ...]) -> Metrics:
    steps = sums["num_steps"]
    return {f"{network}/{name}": sums[name] / steps for name in names} if steps else {}


def fastest_update(policy: ActorCritic, objective: Objective, pi_optimizer: Adam, vf_optimizer: Adam) -> TorchUpdate:
    """The fastest update of a policy."""
    if isinstance(policy, RecurrentActorCritic):
        return RecurrentUpdate(policy, objective, pi_optimizer, vf_optimizer)
    losses = _loss_plan(objective)
    if losses is not None and pi_optimizer in _OPTIMIZERS and vf_optimizer in _OPTIMIZERS:
        kernels = minibatch_kernels(policy, losses, pi_optimizer, vf_optimizer, (BETA1, BETA2))
        if kernels is not None:
            return KernelUpdate(policy, objective, pi_optimizer, vf_optimizer, kernels)
    return TorchUpdate(policy, objective, pi_optimizer, vf_optimizer)


def _loss_plan(objective: Objective) -> LossPlan | None:
    """What the accelerator is to minimise; None where a formula is not one of RelayRL's own."""
    loss = objective.policy_loss
    if objective not in _OBJECTIVES or loss not in _LOSSES:
        return None
    clip_ratio = loss.clip_ratio if isinstance(loss, ClippedSurrogate) else None
    return LossPlan(clip_ratio, objective.entropy_coef, objective.value_clip, objective.kl_limit)


def fast_gae(
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
    """`returns.gae`."""
    columns = reward, value, next_value, terminated, truncated, valid
    advantage = array_kernels.gae(*columns, gamma=gamma, lam=lam)
    return gae(*columns, gamma=gamma, lam=lam) if advantage is None else advantage


FASTEST = Backend(fast_gae, FlatAdam, fastest_update)
"""What runs are made with."""
