"""Acting for a part of a run's lanes so that every number is the one it would be if all lanes were together.

Two things tie a lane to the others of its batch: the generator, from which all lanes draw in turn, and networks whose sums
depend on the size of the batch. A `LaneSlice` draws for all lanes and keeps what is its own. It fills batches up to a size from
which on the actor's numbers are always the same (`Actor.equal_from_rows`), or to all lanes where there is no such size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.trees import Array, Tree, index
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.acting.actor_wrapper import ActorWrapper


class SlicedGenerator(np.random.Generator):
    """Draws for `num_lanes` lanes and gives the numbers of `lanes` [P]; the first axis of what is drawn is that of lanes.

    Only what actions are drawn with: `random`, `standard_normal` and `uniform`.
    """

    def __init__(self, whole: np.random.Generator, lanes: Array, num_lanes: int) -> None:
        super().__init__(whole.bit_generator)
        self.whole, self._lanes, self._num_lanes = whole, lanes, num_lanes

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return self.whole.random(self._all(size), dtype)[self._lanes]

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return self.whole.standard_normal(self._all(size), dtype)[self._lanes]

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return self.whole.uniform(low, high, self._all(size))[self._lanes]

    def _all(self, size: Any) -> tuple[int, ...]:
        shape = (size,) if isinstance(size, int) else tuple(size)
        if shape[0] != len(self._lanes):
            raise ValueError(f"lanes draw rows of {len(self._lanes)}, not {shape}")
        return (self._num_lanes, *shape[1:])


class LaneSlice:
    """An actor for `lanes` [P], in rising order, of `num_lanes`; `equal_numbers` False leaves batches as small as they are."""

    def __init__(self, actor: Actor, lanes: Array, num_lanes: int, *, equal_numbers: bool = True) -> None:
        self._actor, self._num_lanes, own = actor, num_lanes, len(lanes)
        enough = num_lanes if actor.equal_from_rows is None else min(num_lanes, actor.equal_from_rows)
        rows = np.arange(own)
        self._own: Any = slice(own)
        if not equal_numbers or own >= enough:
            self._rows, self._lanes = rows, lanes
        elif actor.equal_from_rows is None:
            # Each lane at its place in the whole batch; rows of others are filled with one of ours, which is a valid one.
            self._rows = np.zeros(num_lanes, np.int64)
            self._rows[lanes] = rows
            self._own, self._lanes = lanes, np.arange(num_lanes)
        else:
            self._rows = np.concatenate([rows, np.zeros(enough - own, np.int64)])
            self._lanes = lanes[self._rows]
        self._is_filled = len(self._rows) > own
        self._draws: SlicedGenerator | None = None

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        """`Actor.decide` for rows of these lanes; `rng` draws for all lanes."""
        if rng is not None:
            if self._draws is None or self._draws.whole is not rng:
                self._draws = SlicedGenerator(rng, self._lanes, self._num_lanes)
            rng = self._draws
        if not self._is_filled:
            return self._actor.decide(obs, mask, memory, rng)
        mask = None if mask is None else mask[self._rows]
        memory = None if memory is None else memory[self._rows]
        decision = self._actor.decide(index(obs, self._rows), mask, memory, rng)
        return Decision(*(None if part is None else index(part, self._own) for part in decision))


class SlicedActor(ActorWrapper):
    """Acts for lanes `first … first + own - 1` of `num_lanes`, by one policy."""

    def __init__(self, actor: Actor, first: int, own: int, num_lanes: int, *, equal_numbers: bool = True) -> None:
        super().__init__(actor)
        self.knows_logp, self.gives_value, self.memory_width = actor.knows_logp, actor.gives_value, actor.memory_width
        self._slice = LaneSlice(actor, first + np.arange(own), num_lanes, equal_numbers=equal_numbers)

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        return self._slice.decide(obs, mask, memory, rng)
