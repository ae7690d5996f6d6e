"""The reference of an update of policies with a memory that never leaves its device: sequences as starts inside lanes.

Sequences are those that `sequences.cut` makes: they begin with a rollout, with an episode, and wherever `sequence_length` steps
were taken since. How many there are is known to the device alone, so networks are unrolled over whole lanes instead, in which a
sequence's first row begins with the memory that acted, and no gradient goes back across it: the same numbers, in columns of one
shape. Minibatches are whole lanes, thus whole sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relayrl.algorithms.updates.device_update import DeviceBatch, DeviceImageUpdate, DeviceUpdate
from relayrl.models.networks.memory_cell import MemoryCell, MemoryStarts, UnrolledLanes
from relayrl.models.recurrent_policy import RecurrentActorCritic

if TYPE_CHECKING:
    from relayrl.algorithms.losses import Objective
    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.models.networks.recurrent_network import RecurrentNetwork
    from relayrl.models.policy import ActorCritic


def memory_starts(ended: Tensor, before: Tensor, sequence_length: int) -> MemoryStarts:
    """The starts of the sequences of lanes whose episodes `ended` [T, L]; `before` [T, L, M] is what they remembered before
    each row, of which the first is enough where a sequence may be as long as T."""
    num_steps, num_lanes = ended.shape
    begins = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
    rows = torch.arange(num_steps, device=ended.device)[:, None]
    since_begin = rows - torch.where(begins, rows, 0).cummax(0).values
    is_given = (since_begin % sequence_length == 0) & ~begins
    number = is_given.cumsum(0)  # the memory of an episode's beginning is slot 0: nothing
    slot = torch.where(begins, 0, torch.where(is_given, number, -1))
    nothing = torch.zeros_like(before[:1])
    if sequence_length >= num_steps:
        return MemoryStarts(slot, torch.cat([nothing, before[:1]]))
    # A lane has at most ⌈T / sequence_length⌉ of them: the one of row 0, and one for every so many steps of an episode.
    most = -(-num_steps // sequence_length)
    lanes = torch.arange(num_lanes, device=ended.device)
    where = torch.where(is_given, number, most + 1), lanes.expand_as(number)
    found = number.new_zeros((most + 2, num_lanes)).index_put(where, rows.expand_as(number))
    return MemoryStarts(slot, torch.cat([nothing, before[found[1:-1], lanes]]))


@dataclass(slots=True)
class LaneBatch(DeviceBatch):
    """Rows of lanes, `[T, L, …]`, with what actor and critic remembered where sequences start."""

    actor_starts: MemoryStarts
    critic_starts: MemoryStarts

    def __len__(self) -> int:
        return self.advantage.shape[1]

    def rows(self, where: Tensor | None) -> LaneBatch:
        """Some of the lanes; all of them for None."""
        if where is None:
            return self
        taken = {id(column): column[:, where] for column in self.columns() if column is not None}
        columns = [taken.get(id(column)) for column in self.columns()]
        starts = {"actor_starts": self.actor_starts.lanes(where), "critic_starts": self.critic_starts.lanes(where)}
        return LaneBatch(*columns, **starts)  # type: ignore[arg-type]

    def flat(self) -> DeviceBatch:
        """The rows without their order, as losses see them."""
        return DeviceBatch(*[None if column is None else column.flatten(0, 1) for column in self.columns()])  # type: ignore[arg-type]


class RecurrentDeviceUpdate(DeviceUpdate):
    """Acts step by step, learns from lanes; `unroll` is the time loop, which the accelerator has a twin of."""

    policy: RecurrentActorCritic

    @torch.no_grad()
    def act_remembering(self, obs: Tensor, noise: Tensor, memory: Tensor, out: tuple[Tensor, Tensor]) -> None:
        """`act_into` with the actor's `memory` [L, M], which becomes what is remembered after."""
        policy = self.policy
        outputs, after = policy.actor.step(self.encoded(self.features(obs)), memory)
        distribution = policy.distribution_of(outputs, None)
        action = policy.head.sample_torch(distribution, noise, policy.constants)
        memory.copy_(after)
        out[0].copy_(action)
        out[1].copy_(policy.head.log_prob(distribution, action))

    def hidden(self, network: RecurrentNetwork, seen: Tensor) -> Tensor:
        """[T, L, I] what a network's cell sees of rows of lanes, where no gradient is asked for."""
        return network.hidden(seen)

    def unroll(self, cell: MemoryCell, inputs: Tensor, starts: MemoryStarts) -> UnrolledLanes:
        """A cell over lanes, `inputs` [T, L, I]."""
        return cell.unroll_lanes(inputs, starts)

    def _outputs(self, network: RecurrentNetwork, seen: Tensor, rows: DeviceBatch, starts: MemoryStarts) -> Tensor:
        """[T · L, O] a network's outputs of what it sees of lanes."""
        hidden = network.hidden(seen.reshape(*rows.advantage.shape, seen.shape[-1]))
        outputs: Tensor = network.output(self.unroll(network.cell, hidden, starts).outputs)
        return outputs.flatten(0, 1)

    def _distribution(self, seen: Tensor, rows: DeviceBatch) -> Tensor:
        assert isinstance(rows, LaneBatch)
        outputs = self._outputs(self.policy.actor, seen, rows, rows.actor_starts)
        return self.policy.distribution_of(outputs, rows.flat().mask)

    def _normalized_value(self, seen: Tensor, rows: DeviceBatch) -> Tensor:
        assert isinstance(rows, LaneBatch)
        return self._outputs(self.policy.critic, seen, rows, rows.critic_starts).squeeze(-1)


class RecurrentDeviceImageUpdate(DeviceImageUpdate, RecurrentDeviceUpdate):
    """For policies with a memory each of actor and critic, behind an encoder of images."""


def reference_device_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> DeviceUpdate:
    """The update of any policy on its device."""
    shares = policy.image_encoder is not None
    if isinstance(policy, RecurrentActorCritic):
        make: type[DeviceUpdate] = RecurrentDeviceImageUpdate if shares else RecurrentDeviceUpdate
    else:
        make = DeviceImageUpdate if shares else DeviceUpdate
    return make(policy, objective, pi_optimizer, vf_optimizer)
