"""What updates on a GPU have kernels for whatever their networks: orders of rows, truncations, GAE, normalisation, Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayrl.accelerator.gpu.advantage_kernels import gae, normalize, truncated_rows
from relayrl.accelerator.gpu.clipped_adam import FusedAdam
from relayrl.accelerator.gpu.minibatch_kernels import shuffled_rows
from relayrl.algorithms.updates.device_update import DeviceUpdate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from relayrl.algorithms.losses import Objective
    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.models.policy import ActorCritic


class RowKernels(DeviceUpdate):
    """A `DeviceUpdate` whose networks are as they are."""

    pi_adam: FusedAdam
    vf_adam: FusedAdam

    def __init__(
        self, policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer)
        self.pi_adam, self.vf_adam = FusedAdam(pi_optimizer), FusedAdam(vf_optimizer)

    def truncated_rows(self, truncated: Tensor, num_slots: int) -> Tensor:
        return truncated_rows(truncated, num_slots)

    def normalized(self, advantage: Tensor, value: Tensor, sums: Tensor) -> Tensor:
        return normalize(advantage, value, sums)

    def shuffled(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """By a random bijection, without a sort."""
        return shuffled_rows(num_rows, generator)

    def advantages(
        self,
        reward: Tensor,
        values: tuple[Tensor, Tensor, Tensor],
        flags: tuple[Tensor, Tensor],
        gamma: float,
        lam: float,
    ) -> Tensor:
        return gae(reward, values, flags, gamma=gamma, lam=lam)
