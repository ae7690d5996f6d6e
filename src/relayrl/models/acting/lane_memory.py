"""What recurrent policies remember while they act: a row of numbers per lane. Free of torch.

    memory = LaneMemory(actor, num_lanes=2)
    decision = memory.decide(obs, mask, rng, active)         # a step of every lane; those that act remember it
    memory.forget(ended)                                     # the next step of these lanes begins an episode

A lane begins every episode with zeros. Rows on which it does not act leave its memory as it is. For a policy without memory all
of this changes nothing, so that who plays episodes need not ask; the collector, which counts calls, does.
"""

from __future__ import annotations

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.models.acting.actor import Actor, Decision


class LaneMemory:
    """The memory of lanes that one actor acts for; `values` [L, M] is what they remember before their next step."""

    def __init__(self, actor: Actor, num_lanes: int) -> None:
        self._actor = actor
        self.values: Array = np.zeros((num_lanes, actor.memory_width), np.float32)

    def decide(
        self, obs: Tree, mask: Array | None, rng: np.random.Generator | None, active: Array | None = None
    ) -> Decision:
        """Decisions of all lanes; those that are `active` [L] (None: all) remember what they saw."""
        decision = self._actor.decide(obs, mask, self.values, rng)
        if self.values.shape[1] and decision.memory is not None:
            # A new array: whoever holds the memory from before the step keeps it.
            after = decision.memory
            self.values = after if active is None else np.where(active[:, None], after, self.values)
        return decision

    def forget(self, ended: Array) -> None:
        """Lanes whose episode `ended` [L] begin the next one with zeros."""
        if self.values.shape[1] and ended.any():
            self.values = np.where(ended[:, None], np.float32(0.0), self.values)
