"""What recurrent policies remember while they act: a row of numbers per lane. Free of torch.

    memory = LaneMemory(actor, num_lanes=2)
    parameters = memory.distribution(obs, mask, active)      # a step of every lane; those that act remember it
    memory.forget(ended)                                     # the next step of these lanes begins an episode

A lane begins every episode with zeros. Rows on which it does not act leave its memory as it is. For a policy without memory all
of this costs one call and changes nothing, so that who plays episodes need not ask.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.errors import ConfigError
from relayrl.models.actor import Actor

MEMORY_DECIDES = "this policy has a memory, which decides as well; call step(obs, mask, memory)"


class RecurrentActor(Actor):
    """An actor of a policy with memory: `step` is all it has."""

    def distribution(self, obs: Tree, mask: Array | None = None) -> NoReturn:
        raise ConfigError(MEMORY_DECIDES)


class LaneMemory:
    """The memory of lanes that one actor acts for; `values` [L, M] is what they remember before their next step."""

    def __init__(self, actor: Actor, num_lanes: int) -> None:
        self._actor = actor
        self.values: Array = np.zeros((num_lanes, actor.memory_width), np.float32)

    def distribution(self, obs: Tree, mask: Array | None = None, active: Array | None = None) -> Array:
        """Distribution parameters [L, P]; lanes that are `active` [L] (None: all) remember what they saw."""
        if not self.values.shape[1]:
            return self._actor.distribution(obs, mask)
        parameters, after = self._actor.step(obs, mask, self.values)
        # A new array: whoever holds the memory from before the step keeps it.
        self.values = np.array(after) if active is None else np.where(active[:, None], after, self.values)
        return parameters

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator, active: Array | None = None) -> Array:
        """Drawn actions, unclipped, as they are stored."""
        return self._actor.head.sample(self.distribution(obs, mask, active), rng)

    def act_greedily(self, obs: Tree, mask: Array | None = None, active: Array | None = None) -> Array:
        """The most likely actions."""
        if not self.values.shape[1]:
            return self._actor.act_greedily(obs, mask)
        return self._actor.head.mode(self.distribution(obs, mask, active))

    def forget(self, ended: Array) -> None:
        """Lanes whose episode `ended` [L] begin the next one with zeros."""
        if self.values.shape[1] and ended.any():
            self.values = np.where(ended[:, None], np.float32(0.0), self.values)
