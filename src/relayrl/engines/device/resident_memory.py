"""What the lanes of a device-resident run remember: carried from rollout to rollout, and forgotten when an episode ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from relayrl.models.networks.recurrent_network import memory_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from relayrl.models.recurrent_policy import RecurrentActorCritic


class ResidentMemory:
    """One group's lanes. The collector moves the actor's memory on, the learner the critic's."""

    def __init__(
        self, policy: RecurrentActorCritic, num_steps: int, num_lanes: int, device: torch.device | str
    ) -> None:
        """`num_steps` are those of a whole rollout."""
        self.sequence_length = memory_of(policy.network).sequence_length
        self.actor, self.critic = (
            torch.zeros((num_lanes, network.memory_width), device=device) for network in (policy.actor, policy.critic)
        )
        # Sequences start on the first row alone, or with nothing, where they may be as long as a rollout.
        num_rows = num_steps if self.sequence_length < num_steps else 1
        self.before_rows = self.actor.new_zeros((num_rows, *self.actor.shape))
        """[T, L, M] what the actor remembered before each row, or before the first one alone, where no other is needed."""

    def begin_row(self, t: int) -> None:
        """Keep what the actor remembers before row `t`."""
        if t < len(self.before_rows):
            self.before_rows[t].copy_(self.actor)

    def end_row(self, ended: Tensor) -> None:
        """Forget the episodes that `ended` [L], after the actor's memory was moved on."""
        self.actor.mul_(~ended[:, None])

    def forget(self) -> None:
        """Begin anew in every lane."""
        self.actor.zero_()
        self.critic.zero_()

    def state_dict(self) -> dict[str, Any]:
        """What a run goes on from, between two rollouts."""
        return {"actor": self.actor.cpu(), "critic": self.critic.cpu()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.actor.copy_(state["actor"])
        self.critic.copy_(state["critic"])
