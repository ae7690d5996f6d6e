"""Acting at random while there is nothing to learn from yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array, Tree, leaves
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.acting.actor_wrapper import ActorWrapper
from relayrl.models.acting.exploration import Exploration


class WarmupActor(ActorWrapper):
    """Uniform actions among what is allowed while the exploration state says so, then those of another actor.

    Beside a live policy it follows the learner's state, as that actor follows the weights; elsewhere, `explore` sets it.
    """

    def __init__(self, actor: Actor, exploration: Callable[[], Exploration]) -> None:
        super().__init__(actor)
        self._exploration, self.equal_from_rows = exploration, actor.equal_from_rows

    def explore(self, exploration: Exploration) -> None:
        self._exploration = lambda: exploration
        super().explore(exploration)

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        if rng is None or not self._exploration().is_warming_up:
            return self.actor.decide(obs, mask, memory, rng)
        num_rows = len(next(iter(leaves(obs)))[1])
        action = self.head.sample_uniform(num_rows, mask, rng)
        return Decision(action, self.head.uniform_log_prob(action, mask))
