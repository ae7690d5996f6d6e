"""An on-policy update on a GPU by fused kernels: `DeviceUpdate` for the parts that the kernels know exactly.

Taken are policies, heads, losses and optimisers of exactly RelayRL's own types, on a CUDA device. A subclass, or one of them
with a changed method, a hook or a frozen parameter, is obeyed by leaving it to the reference. No method asks the host anything,
so all of them may be captured in a CUDA graph after they were called once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relayrl.accelerator.gpu.acting_kernels import MAX_FUSED_WIDTH, ForwardPlan
from relayrl.accelerator.gpu.clipped_adam import REDUCE_COLUMNS
from relayrl.accelerator.gpu.gradient_plans import GradientPlan, PersistentPlan, gradient_plan
from relayrl.accelerator.gpu.gradient_terms import HeadShape, Network, PolicyTerms, ValueTerms
from relayrl.accelerator.gpu.minibatch_kernels import step_both
from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision, is_trained_float32, mlp_shape
from relayrl.accelerator.gpu.row_kernels import RowKernels
from relayrl.algorithms.losses import ClippedSurrogate, LogLikelihood, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_update import DeviceBatch
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.box_heads import GaussianHead
from relayrl.models.heads.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer
from relayrl.models.policy import ActorCritic

MAX_OUTPUTS = 64
_POLICIES, _HEADS = BuiltIns(ActorCritic), BuiltIns(CategoricalHead, MultiCategoricalHead, GaussianHead)
_CLIPPED, _PLAIN, _OBJECTIVES = BuiltIns(ClippedSurrogate), BuiltIns(LogLikelihood), BuiltIns(Objective)
_OPTIMIZERS = BuiltIns(FlatAdam)
_ENCODERS, _NORMALIZERS = BuiltIns(ObservationEncoder), BuiltIns(RunningNormalizer)


def fused_update(
    policy: ActorCritic,
    objective: Objective,
    pi_optimizer: FlatAdam,
    vf_optimizer: FlatAdam,
    precision: Precision | None = None,
) -> FusedUpdate | None:
    """An update by kernels, near float32 where no precision is given; None where a part is not exactly what they know, or does
    not lie on a CUDA device."""
    if pi_optimizer.vector.device.type != "cuda" or vf_optimizer.vector.device != pi_optimizer.vector.device:
        return None
    return known_update(policy, objective, pi_optimizer, vf_optimizer, precision)


def known_update(
    policy: ActorCritic,
    objective: Objective,
    pi_optimizer: FlatAdam,
    vf_optimizer: FlatAdam,
    precision: Precision | None = None,
) -> FusedUpdate | None:
    """The same wherever the tensors lie: Triton's interpreter takes those of the host."""
    is_known = (
        policy in _POLICIES
        and policy.image_encoder is None
        and has_known_losses(policy, objective)
        and pi_optimizer in _OPTIMIZERS
        and vf_optimizer in _OPTIMIZERS
    )
    if not is_known:
        return None
    actor, critic, head = mlp_shape(policy.actor), mlp_shape(policy.critic), head_shape(policy.head)
    if actor is None or critic is None or max(actor.sizes[-1], critic.sizes[-1]) > MAX_OUTPUTS:
        return None
    if precision is None:  # three products of bfloat16 halves are 2.6 times faster, and exact enough for small networks
        is_small = max(*actor.widths, *critic.widths) <= MAX_FUSED_WIDTH[Precision.BF16X3]
        precision = Precision.BF16X3 if is_small else Precision.NEAR_FLOAT32
    return FusedUpdate(policy, objective, (pi_optimizer, vf_optimizer), (actor, critic), head, precision)


def has_known_losses(policy: ActorCritic, objective: Objective) -> bool:
    """Whether the head's distribution and the losses are exactly what `action_tiles` has."""
    loss, learns = objective.policy_loss, policy.head.learns_log_std
    is_known = policy.head in _HEADS and objective in _OBJECTIVES and (loss in _CLIPPED or loss in _PLAIN)
    return is_known and (not learns or is_trained_float32(policy.log_std))


def head_shape(head: ActionHead) -> HeadShape:
    """What kernels must know of a known head."""
    described = head.describe()
    assert described is not None
    return HeadShape(described.part_sizes, described.starts)


def sees_plainly(policy: ActorCritic) -> bool:
    """Whether what a policy's networks see comes from RelayRL's own encoder and normaliser."""
    return policy.encoder in _ENCODERS and (policy.normalizer is None or policy.normalizer in _NORMALIZERS)


def policy_terms(batch: DeviceBatch, objective: Objective, scales: tuple[Tensor | None, Tensor | None]) -> PolicyTerms:
    """What kernels take of rows for the policy's loss; `scales` are scale and center of actions that have them."""
    loss = objective.policy_loss
    clip_ratio = loss.clip_ratio if isinstance(loss, ClippedSurrogate) else None
    columns = batch.action, batch.mask, batch.logp, batch.advantage
    return PolicyTerms(*columns, *scales, clip_ratio, objective.entropy_coef)


def value_terms(batch: DeviceBatch, objective: Objective) -> ValueTerms:
    """What they take for the value's loss."""
    return ValueTerms(batch.old_value, batch.target, objective.value_clip)


class FusedUpdate(RowKernels):
    """Acts, values, differentiates and steps; made by `fused_update`, which knows for what."""

    def __init__(
        self,
        policy: ActorCritic,
        objective: Objective,
        optimizers: tuple[FlatAdam, FlatAdam],
        shapes: tuple[MLPShape, MLPShape],
        head: HeadShape,
        precision: Precision,
    ) -> None:
        super().__init__(policy, objective, *optimizers)
        self.precision, self._head, self._shapes = precision, head, shapes
        self._scales = (None, None) if head.parts else (policy.action_scale, policy.action_center)
        self._actor, self._critic = (ForwardPlan(shape, precision) for shape in shapes)
        self._plans: dict[int, GradientPlan] = {}
        self._squares = _squares(optimizers[0]), _squares(optimizers[1])
        self._everything: Tensor | None = None

    def act(self, features: Tensor, noise: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        lanes, device, several = features.shape[0], features.device, self.policy.head in _SEVERAL
        if self._head.parts:
            action = torch.empty((lanes, *[len(self._head.parts)] * several), dtype=torch.int64, device=device)
        else:
            action = torch.empty((lanes, self._shapes[0].sizes[-1]), device=device)
        out = action, torch.empty(lanes, device=device)
        self._act(features, noise, out, mask)
        return out

    def act_into(self, obs: Tensor, noise: Tensor, out: tuple[Tensor, Tensor]) -> None:
        """In one launch, where observations are what the network sees."""
        self._act(self.features(obs), noise, out, None)

    def _act(self, features: Tensor, noise: Tensor, out: tuple[Tensor, Tensor], mask: Tensor | None) -> None:
        vector, x = self.pi_adam.flat.vector, features.contiguous()
        self._actor.act(vector, x, mask, noise.contiguous(), self._head, self._scales, out)

    def values(self, critic_features: Tensor) -> Tensor:
        value = torch.empty(critic_features.shape[0], device=critic_features.device)
        moments = self.policy.return_normalizer.shift, self.policy.return_normalizer.scale
        self._critic.values(self.vf_adam.flat.vector, critic_features.contiguous(), moments, value)
        return value

    def gradients(
        self, batch: DeviceBatch, where: Tensor | None, *, trains_pi: bool, trains_vf: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        rows = self._all_rows(batch) if where is None else where
        plan, (actor, critic) = self._plan(rows), self._networks(batch)
        terms = policy_terms(batch, self.objective, self._scales), value_terms(batch, self.objective)
        policy = plan.policy(actor, rows, self._head, terms[0]).clone() if trains_pi else None
        return policy, plan.value(critic, rows, terms[1]).clone() if trains_vf else None

    def take_step(
        self,
        batch: DeviceBatch,
        where: Tensor | None,
        keep: Tensor,
        sums: tuple[Tensor, Tensor],
        *,
        trains_pi: bool = True,
        trains_vf: bool = True,
    ) -> None:
        """In three launches where both networks are trained and small."""
        rows = self._all_rows(batch) if where is None else where
        plan = self._plan(rows)
        if not (isinstance(plan, PersistentPlan) and trains_pi and trains_vf):
            super().take_step(batch, rows, keep, sums, trains_pi=trains_pi, trains_vf=trains_vf)
            return
        actor, critic = self._networks(batch)
        policy = actor, self._head, policy_terms(batch, self.objective, self._scales)
        parts = plan.launch(policy, (critic, value_terms(batch, self.objective)), rows)
        step_both(parts, (self.pi_adam, self.vf_adam), self._squares, sums, keep, self.objective.kl_limit)

    def _networks(self, batch: DeviceBatch) -> tuple[Network, Network]:
        pi, vf = self.pi_adam.flat, self.vf_adam.flat
        actor = Network(self._shapes[0], pi.vector, pi.gradient, batch.features)
        return actor, Network(self._shapes[1], vf.vector, vf.gradient, batch.critic_features)

    def _all_rows(self, batch: DeviceBatch) -> Tensor:
        if self._everything is None or len(self._everything) != len(batch.features):
            self._everything = torch.arange(len(batch.features), device=batch.features.device)
        return self._everything

    def _plan(self, rows: Tensor) -> GradientPlan:
        num_rows = rows.shape[0]
        if num_rows not in self._plans:
            num_extra = 0 if self._head.parts else self._shapes[0].sizes[-1]
            self._plans[num_rows] = gradient_plan(self._shapes, num_extra, num_rows, self.precision, rows.device)
        return self._plans[num_rows]


def _squares(optimizer: FlatAdam) -> Tensor:
    return torch.zeros(-(-optimizer.vector.numel() // REDUCE_COLUMNS), device=optimizer.vector.device)


_SEVERAL = BuiltIns(MultiCategoricalHead)
