"""Acting at random while there is nothing to learn from yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array, Tree, leaves
from relayrl.models.actor import Actor


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
        return self.head.sample_uniform(num_rows, mask, rng)
