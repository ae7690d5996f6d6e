"""Acting at random while there is nothing to learn from yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array, Tree, leaves
from relayrl.models.actor import Actor
from relayrl.models.box_heads import BoxHead


class WarmupActor(Actor):
    """Uniform actions among what is allowed as long as `is_warming_up()` says so, then those of another actor."""

    def __init__(self, actor: Actor, is_warming_up: Callable[[], bool]) -> None:
        self._actor, self.head, self._is_warming_up = actor, actor.head, is_warming_up

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._actor.distribution(obs, mask)

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> Array:
        if not self._is_warming_up():
            return self._actor.act(obs, mask, rng)
        num_rows = len(next(iter(leaves(obs)))[1])
        head = self.head
        if isinstance(head, BoxHead):
            return rng.uniform(head.low, head.high, (num_rows, head.num_actions)).astype(np.float32)
        indifferent = np.zeros((num_rows, head.num_outputs), np.float32)
        return head.sample(head.parameters_numpy(indifferent, mask), rng)
