"""Acting at random while there is nothing to learn from yet, and now and then later."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array, Tree, leaves
from relayrl.models.actor import Actor
from relayrl.models.box_heads import BoxHead


class ExploringActor(Actor):
    """Uniform actions among what is allowed as long as `is_warming_up()` says so, then those of another actor.

    `random_share` of the later ones are uniform too: for discrete choices, what noise is for a box.
    """

    def __init__(self, actor: Actor, is_warming_up: Callable[[], bool], random_share: float = 0.0) -> None:
        self._actor, self.head, self._is_warming_up = actor, actor.head, is_warming_up
        self._random_share = random_share

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._actor.distribution(obs, mask)

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> Array:
        num_rows = len(next(iter(leaves(obs)))[1])
        if self._is_warming_up():
            return self._uniform(num_rows, mask, rng)
        action = self._actor.act(obs, mask, rng)
        if self._random_share > 0.0:
            rows = rng.random(num_rows) < self._random_share
            action[rows] = self._uniform(num_rows, mask, rng)[rows]
        return action

    def _uniform(self, num_rows: int, mask: Array | None, rng: np.random.Generator) -> Array:
        head = self.head
        if isinstance(head, BoxHead):
            return rng.uniform(head.low, head.high, (num_rows, head.num_actions)).astype(np.float32)
        indifferent = np.zeros((num_rows, head.num_outputs), np.float32)
        return head.sample(head.parameters_numpy(indifferent, mask), rng)
