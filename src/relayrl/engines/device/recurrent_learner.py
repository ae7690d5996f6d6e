"""Learns from rollouts on their device with policies that have a memory: what `RecurrentUpdate` computes, without the host.

The critic goes through a rollout when it is over, in one loop from where it stopped in the one before. What followed a row
that was truncated, or the last one, is valued with the memory after that row. Minibatches are whole lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from relayrl.algorithms.updates.device_sequences import LaneBatch, RecurrentDeviceUpdate, memory_starts
from relayrl.engines.device.resident_learner import ResidentLearner

if TYPE_CHECKING:
    from relayrl.algorithms.updates.device_update import DeviceBatch
    from relayrl.engines.device.resident_learner import Seen
    from relayrl.engines.device.resident_memory import ResidentMemory
    from relayrl.engines.device.resident_rollout import ResidentRollout


class RecurrentLearner(ResidentLearner):
    """One group's PPO on a device, with a memory."""

    update: RecurrentDeviceUpdate

    @torch.no_grad()
    def _values(self, rollout: ResidentRollout, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        policy, memory = self.update.policy, _memory_of(rollout)
        critic, ended = policy.critic, rollout.ended
        last, final = self._encoded(seen.last, 1), self._encoded(seen.final, 2)
        hidden = self.update.hidden(critic, self._encoded(seen.rows, 2))
        starts = memory_starts(ended, memory.critic[None], rollout.num_steps)
        lived = self.update.unroll(critic.cell, hidden, starts)
        cut_rows, lanes = rollout.truncated_rows(self.update), torch.arange(rollout.num_lanes, device=ended.device)
        _, after_cut = critic.cell.step(hidden[cut_rows, lanes].to(lived.before.dtype), lived.before[cut_rows, lanes])
        outputs = critic.output(lived.outputs), critic.step(last, lived.after)[0], critic.step(final, after_cut)[0]
        self._critic_starts = memory_starts(ended, lived.before, memory.sequence_length)
        memory.critic.copy_(lived.after * ~ended[-1][:, None])
        value, last_value, final_value = (policy.in_units_of_reward(out.squeeze(-1)) for out in outputs)
        return value, last_value, final_value

    def _encoded(self, seen: Tensor, num_axes: int) -> Tensor:
        """[…, E] what the critic's layers see of columns with so many axes of rows and lanes."""
        flat = self.update.encoded(seen.flatten(0, num_axes - 1))
        return flat.view(*seen.shape[:num_axes], flat.shape[-1])

    def _batch(
        self, rollout: ResidentRollout, features: Tensor, seen: Seen, value: Tensor, advantage: Tensor
    ) -> DeviceBatch:
        memory, ended = _memory_of(rollout), rollout.ended
        return LaneBatch(
            features.view(*rollout.reward.shape, *features.shape[1:]),
            seen.rows,
            rollout.action,
            None,
            rollout.logp,
            advantage,
            advantage + value,
            value,
            memory_starts(ended, memory.before_rows, memory.sequence_length),
            self._critic_starts,
        )


def _memory_of(rollout: ResidentRollout) -> ResidentMemory:
    return cast("ResidentMemory", rollout.memory)
