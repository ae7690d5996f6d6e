"""An update of policies with a memory on a GPU: `RecurrentDeviceUpdate` whose time loops, GAE and Adam are kernels.

The layers around a cell are matrix products of torch's. Taken are policies with cells, and optimisers, of exactly RelayRL's own
types; everything else is left to the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.accelerator.gpu.advantage_kernels import gae
from relayrl.accelerator.gpu.clipped_adam import FusedAdam
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent.fused_cells import fused_unroll, is_known_cell
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_sequences import RecurrentDeviceUpdate
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.recurrent_network import RecurrentNetwork
from relayrl.models.recurrent_policy import RecurrentActorCritic

if TYPE_CHECKING:
    from torch import Tensor

    from relayrl.algorithms.losses import Objective
    from relayrl.models.networks.memory_cell import MemoryCell, MemoryStarts, UnrolledLanes
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
    chosen = precision or Precision.NEAR_FLOAT32
    return FusedRecurrentUpdate(policy, objective, pi_optimizer, vf_optimizer, chosen)


class FusedRecurrentUpdate(RecurrentDeviceUpdate):
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
        self.pi_adam, self.vf_adam = FusedAdam(pi_optimizer), FusedAdam(vf_optimizer)
        self.precision = precision

    def unroll(self, cell: MemoryCell, inputs: Tensor, starts: MemoryStarts) -> UnrolledLanes:
        return fused_unroll(cell, inputs, starts, self.precision)

    def advantages(
        self,
        reward: Tensor,
        values: tuple[Tensor, Tensor, Tensor],
        flags: tuple[Tensor, Tensor],
        gamma: float,
        lam: float,
    ) -> Tensor:
        return gae(reward, values, flags, gamma=gamma, lam=lam)
