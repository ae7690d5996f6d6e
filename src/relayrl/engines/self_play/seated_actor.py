"""An actor whose lanes are played by different players: the learner, and frozen copies of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Tree, index, map_tree
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.acting.exploration import Exploration

LEARNER = -1
"""The player that learns; others have numbers from 0 on."""


class SeatedActor(Actor):
    """Acts for each lane as the player that has its seat.

    `seats()` gives [L] the players of the lanes, and is called once for every row; `actor_of` what a frozen player acts by.
    """

    def __init__(self, learner: Actor, seats: Callable[[], Array], actor_of: Callable[[int], Actor]) -> None:
        self._learner, self._seats, self._actor_of = learner, seats, actor_of
        self.head, self.observation_space = learner.head, learner.observation_space
        self.knows_logp, self.gives_value = learner.knows_logp, learner.gives_value
        self.memory_width = learner.memory_width

    def explore(self, exploration: Exploration) -> None:
        self._learner.explore(exploration)

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._learner.distribution(obs, mask)

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        seats = self._seats()
        players: list[int] = np.unique(seats).tolist()
        if players == [LEARNER]:
            return self._learner.decide(obs, mask, memory, rng)
        places, parts = [], []
        for player in players:
            lanes = np.flatnonzero(seats == player)
            actor = self._learner if player == LEARNER else self._actor_of(player)
            own_mask, own_memory = (None if column is None else column[lanes] for column in (mask, memory))
            places.append(lanes)
            parts.append(actor.decide(index(obs, lanes), own_mask, own_memory, rng))
        return Decision(*(_joined(column, places) for column in zip(*parts, strict=True)))


def _joined(column: tuple[Any, ...], places: list[Array]) -> Any:
    """Rows of all players in the order of lanes; None where one of them has none."""
    if any(part is None for part in column):
        return None

    def join(*parts: Array) -> Array:
        rows = np.empty((sum(map(len, places)), *parts[0].shape[1:]), parts[0].dtype)
        for lanes, part in zip(places, parts, strict=True):
            rows[lanes] = part
        return rows

    return map_tree(join, *column)
