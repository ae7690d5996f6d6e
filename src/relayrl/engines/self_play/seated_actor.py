"""An actor whose lanes are played by different players: the learner, and frozen copies of it.

What a lane decides depends on the lane, its player and the generator alone, not on who plays elsewhere: every player draws for
all lanes of the run from the same state of the generator and keeps the numbers of its own lanes, and the generator then goes
on by a fixed distance. So collectors that have some of the environments each decide as one that has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Tree, index, map_tree
from relayrl.engines.self_play.seats import LEARNER
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.acting.actor_wrapper import ActorWrapper
from relayrl.models.acting.lane_slices import LaneSlice

ROW_DISTANCE = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Draws of PCG64 between two rows, of its 2^128: the golden ratio's share, as in NumPy's `jumped`. A power of two would leave
the low bits of its state as they were."""


class SeatedActor(ActorWrapper):
    """Acts for each lane as the player that has its seat.

    `seats()` gives [P] the players of the lanes `first … first + P - 1` of `num_lanes`, and is called once for every row;
    `actor_of` gives what a frozen player acts by.
    """

    def __init__(
        self,
        learner: Actor,
        seats: Callable[[], Array],
        actor_of: Callable[[int], Actor],
        num_lanes: int,
        first: int = 0,
        *,
        equal_numbers: bool = True,
    ) -> None:
        super().__init__(learner)
        self._seats, self._actor_of = seats, actor_of
        self._num_lanes, self._first, self._equal_numbers = num_lanes, first, equal_numbers
        self.knows_logp, self.gives_value = learner.knows_logp, learner.gives_value
        self.memory_width = learner.memory_width
        self._seated: Array = np.zeros(0, np.int64)
        self._players: list[tuple[Actor, Array, LaneSlice]] = []

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        self._sit_down(self._seats())
        rewind = _no_draws if rng is None else _rewinding(rng)
        places, parts = [], []
        for _, lanes, own in self._players:
            own_mask, own_memory = (None if column is None else column[lanes] for column in (mask, memory))
            places.append(lanes)
            parts.append(own.decide(index(obs, lanes), own_mask, own_memory, rng))
            rewind()
        if rng is not None:
            rng.bit_generator.advance(ROW_DISTANCE)  # type: ignore[attr-defined] # collectors draw from PCG64
        return Decision(*(_joined(column, places) for column in zip(*parts, strict=True)))

    def _sit_down(self, seats: Array) -> None:
        """Know who acts for which lanes; a frozen player's number stays, what it acts by may be loaded anew."""
        is_same = np.array_equal(seats, self._seated)
        if is_same and all(actor is self._actor(seats[lanes[0]]) for actor, lanes, _ in self._players):
            return
        self._seated, self._players = seats, []
        for player in np.unique(seats).tolist():
            actor, lanes = self._actor(player), np.flatnonzero(seats == player)
            own = LaneSlice(actor, self._first + lanes, self._num_lanes, equal_numbers=self._equal_numbers)
            self._players.append((actor, lanes, own))

    def _actor(self, player: int) -> Actor:
        return self.actor if player == LEARNER else self._actor_of(int(player))


def _no_draws() -> None:
    """Greedy players draw nothing."""


def _rewinding(rng: np.random.Generator) -> Callable[[], None]:
    """What puts a generator back to its present state."""
    bits = rng.bit_generator
    before = bits.state

    def rewind() -> None:
        bits.state = before

    return rewind


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
