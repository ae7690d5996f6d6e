"""An update of policies with a memory on a GPU: `RecurrentDeviceUpdate` whose time loops, GAE and Adam are kernels.

The layers around a cell are matrix products of torch's. Taken are policies with cells, and optimisers, of exactly RelayRL's own
types; everything else is left to the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from relayrl.accelerator.gpu.fused_update import has_known_losses, head_shape, policy_terms, value_terms
from relayrl.accelerator.gpu.gradient_terms import HeadShape
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent.fused_cells import fused_unroll, is_known_cell
from relayrl.accelerator.gpu.recurrent.lane_gradients import LaneNetwork, LanePlan, half_hidden, half_unroll
from relayrl.accelerator.gpu.recurrent.lane_networks import LaneShape, lane_shape
from relayrl.accelerator.gpu.row_kernels import RowKernels
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_sequences import LaneBatch, RecurrentDeviceUpdate
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.memory_cell import MemoryStarts
from relayrl.models.networks.recurrent_network import RecurrentNetwork
from relayrl.models.recurrent_policy import RecurrentActorCritic

if TYPE_CHECKING:
    from torch import Tensor

    from relayrl.algorithms.losses import Objective
    from relayrl.algorithms.updates.device_update import DeviceBatch
    from relayrl.models.networks.memory_cell import MemoryCell, UnrolledLanes
    from relayrl.models.policy import ActorCritic

_POLICIES, _NETWORKS, _OPTIMIZERS = BuiltIns(RecurrentActorCritic), BuiltIns(RecurrentNetwork), BuiltIns(FlatAdam)


def fused_recurrent_update(
    policy: ActorCritic,
    objective: Objective,
    pi_optimizer: FlatAdam,
    vf_optimizer: FlatAdam,
    precision: Precision | None = None,
) -> FusedRecurrentUpdate | None:
    """An update by kernels, near float32 where no precision is given; None where a part is not exactly what they know. Tensors
    lie on a CUDA device, or on the host for Triton's interpreter."""
    is_known = (
        isinstance(policy, RecurrentActorCritic)
        and policy in _POLICIES
        and policy.image_encoder is None
        and all(net in _NETWORKS and is_known_cell(net.cell) for net in (policy.actor, policy.critic))
        and pi_optimizer in _OPTIMIZERS
        and vf_optimizer in _OPTIMIZERS
    )
    if not is_known:
        return None
    parts = policy, objective, pi_optimizer, vf_optimizer
    if precision is Precision.TF32 and has_known_losses(policy, objective):
        shapes = lane_shape(policy.actor), lane_shape(policy.critic)
        if shapes[0] is not None and shapes[1] is not None and shapes[0].units == shapes[1].units:
            return HalfRecurrentUpdate(*parts, (shapes[0], shapes[1]), head_shape(policy.head))
    return FusedRecurrentUpdate(*parts, precision or Precision.NEAR_FLOAT32)


class FusedRecurrentUpdate(RowKernels, RecurrentDeviceUpdate):
    """Made by `fused_recurrent_update`, which knows for what."""

    def __init__(
        self,
        policy: ActorCritic,
        objective: Objective,
        pi_optimizer: FlatAdam,
        vf_optimizer: FlatAdam,
        precision: Precision,
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer)
        self.precision = precision

    def unroll(self, cell: MemoryCell, inputs: Tensor, starts: MemoryStarts) -> UnrolledLanes:
        return fused_unroll(cell, inputs, starts, self.precision)


class HalfRecurrentUpdate(FusedRecurrentUpdate):
    """The same for a GRU of few units, the layers in front of it and the losses behind it, in half precision: where products
    may be in tf32."""

    def __init__(
        self,
        policy: ActorCritic,
        objective: Objective,
        pi_optimizer: FlatAdam,
        vf_optimizer: FlatAdam,
        shapes: tuple[LaneShape, LaneShape],
        head: HeadShape,
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer, Precision.TF32)
        self.shapes, self._head = shapes, head
        self._scales = (None, None) if head.parts else (policy.action_scale, policy.action_center)
        self._plans: dict[tuple[int, int], LanePlan] = {}

    def gradients(
        self, batch: DeviceBatch, where: Tensor | None, *, trains_pi: bool, trains_vf: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        assert isinstance(batch, LaneBatch)
        num_steps, num_all = batch.advantage.shape
        lanes = torch.arange(num_all, device=batch.advantage.device) if where is None else where
        plan, flat, (actor, critic) = self._plan(num_steps, len(lanes), lanes.device), batch.flat(), self.shapes
        policy = value = None
        if trains_pi:
            own, starts = self.pi_adam.flat, _contiguous(batch.actor_starts)
            network = LaneNetwork(actor, own.vector, own.gradient, flat.features.contiguous(), starts)
            policy = network, self._head, policy_terms(flat, self.objective, self._scales)
        if trains_vf:
            own, starts = self.vf_adam.flat, _contiguous(batch.critic_starts)
            network = LaneNetwork(critic, own.vector, own.gradient, flat.critic_features.contiguous(), starts)
            value = network, value_terms(flat, self.objective)
        return plan.gradients(policy, value, lanes)

    def hidden(self, network: RecurrentNetwork, seen: Tensor) -> Tensor:
        """In half precision."""
        shape, adam = (self.shapes[0], self.pi_adam) if network is self.policy.actor else (self.shapes[1], self.vf_adam)
        return half_hidden(shape, adam.flat.vector, seen.flatten(0, 1)).view(*seen.shape[:2], -1)

    def unroll(self, cell: MemoryCell, inputs: Tensor, starts: MemoryStarts) -> UnrolledLanes:
        """Of critics that value rows: gradients do not come here."""
        return half_unroll(cell, inputs, starts)

    def _plan(self, num_steps: int, num_lanes: int, device: torch.device) -> LanePlan:
        if (num_steps, num_lanes) not in self._plans:
            num_extra = 0 if self._head.parts else self.shapes[0].num_outputs
            self._plans[num_steps, num_lanes] = LanePlan(self.shapes, num_extra, num_steps, num_lanes, device)
        return self._plans[num_steps, num_lanes]


def _contiguous(starts: MemoryStarts) -> MemoryStarts:
    return MemoryStarts(starts.slot.contiguous(), starts.given.contiguous())
