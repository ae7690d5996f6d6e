"""Replay in several places: each keeps what its own environments did, and the learner draws a fixed number of rows from each.

    draws = ReplayDraws(...)                           the learner, before a rollout: what it will need after it
    batches = draw_from(shard, draws, which)           a shard, when it has kept the rollout
    replay.take([batches of shard 0, …])               the learner; `sample` then gives one joined batch after the other

Of a batch of M transitions, the shard of the environments `b_k … b_(k+1) - 1` of B gives those from M b_k / B to M b_(k+1) / B,
rounded down: each environment counts as much as in one replay, and no shard depends on another. What is drawn is a function of
the seed, the steps of the run and the shard: the same settings and number of shards give the same batches, also after a resume;
another number gives others, and so does a replay at the learner.

A shard that was lost begins empty: its next draws are of what it has kept since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Space, map_tree
from relayrl.errors import CheckpointError, ConfigError
from relayrl.training.replay.joint_replay import GroupTransitions, JointReplay, JointTransitions


@dataclass(frozen=True, slots=True)
class ReplayDraws:
    """What the learner needs of all shards behind a rollout."""

    num_batches: int
    rows: tuple[int, ...]
    """Of each batch, by shard."""
    seed: tuple[int, int]
    gamma: float
    num_step_returns: int


@dataclass(frozen=True, slots=True)
class ShardBatches:
    """What a shard answers."""

    size: int
    """Transitions that it holds."""
    batches: list[JointTransitions]


def rows_of_shards(num_rows: int, bounds: Sequence[int]) -> tuple[int, ...]:
    """Transitions of a batch that each shard gives; shard k has the environments `bounds[k] … bounds[k + 1] - 1`."""
    ends = np.array(bounds) * num_rows // bounds[-1]
    return tuple(np.diff(ends).tolist())


def shard_capacity(capacity: int, first: int, last: int, num_envs: int) -> int:
    """Transitions of a replay of `capacity` that fall to environments `first … last - 1`."""
    return max(1, -(-capacity * (last - first) // num_envs))


def draw_from(shard: JointReplay, draws: ReplayDraws, which: int) -> ShardBatches:
    """The batches of one shard."""
    rng = np.random.default_rng([*draws.seed, which])
    options: dict[str, Any] = {"gamma": draws.gamma, "num_step_returns": draws.num_step_returns}
    batches = [shard.sample(draws.rows[which], rng, **options) for _ in range(draws.num_batches)]
    return ShardBatches(len(shard), batches)


class ShardedReplay(JointReplay):
    """The learner's side: holds nothing but the batches that shards have drawn for the next update."""

    def __init__(self, capacity: int, bounds: Sequence[int]) -> None:
        super().__init__(capacity, bounds[-1])
        self.bounds = list(bounds)
        self._sizes = [0] * (len(bounds) - 1)
        self._batches: deque[JointTransitions] = deque()

    def __len__(self) -> int:
        return sum(self._sizes)

    def take(self, shards: Sequence[ShardBatches]) -> None:
        """Give these to the next calls of `sample`, in place of any that are left."""
        self._sizes = [each.size for each in shards]
        self._batches = deque(joined(batches) for batches in zip(*(each.batches for each in shards), strict=True))

    def add(self, rollouts: Mapping[str, Any]) -> None:
        """Nothing: shards have kept the rollout when the learner gets it."""

    def sample(
        self,
        num_rows: int,
        rng: np.random.Generator,
        *,
        gamma: float,
        num_step_returns: int = 1,
        correction: float = 1.0,
    ) -> JointTransitions:
        del rng, gamma, num_step_returns, correction
        if not self._batches:
            raise ConfigError("the shards of a replay were asked for fewer batches than are learned from")
        batch = self._batches.popleft()
        if len(batch) != num_rows:
            raise ConfigError(f"the shards of a replay drew {len(batch)} transitions where {num_rows} are learned from")
        return batch

    def cut(self) -> None:
        """Nothing: shards know when their environments begin anew."""

    def num_bytes(self) -> int:
        return 0

    def get_state(self) -> dict[str, Any]:
        """Which shards there are; what they hold is in their collectors' states."""
        return {"num_envs": self.num_envs, "bounds": self.bounds, "sizes": list(self._sizes), "arrays": {}}

    def set_state(self, state: Mapping[str, Any], spaces: Mapping[str, tuple[Space, Space]]) -> None:
        del spaces
        if "bounds" not in state:
            raise CheckpointError("its replay was the learner's; resume with cluster.replay=learner")
        if list(state["bounds"]) != self.bounds:
            raise CheckpointError(
                f"its replay has {len(state['bounds']) - 1} shards, and the run {len(self.bounds) - 1} collectors; resume "
                "with as many"
            )
        self._sizes = list(state["sizes"])
        self._batches.clear()


def joined(parts: Sequence[JointTransitions]) -> JointTransitions:
    """One batch of all parts, in their order."""
    groups = {name: _joined_group([part.groups[name] for part in parts]) for name in parts[0].groups}
    state, next_state = (_joined([getattr(part, name) for part in parts]) for name in ("state", "next_state"))
    rows = np.arange(sum(len(part) for part in parts))
    return JointTransitions(groups, rows, np.concatenate([part.weight for part in parts]), state, next_state)


def _joined_group(parts: Sequence[GroupTransitions]) -> GroupTransitions:
    names = (field.name for field in fields(GroupTransitions) if field.name != "is_everybody")
    columns: dict[str, Any] = {name: _joined([getattr(part, name) for part in parts]) for name in names}
    return GroupTransitions(**columns, is_everybody=all(part.is_everybody for part in parts))


def _joined(columns: Sequence[Any]) -> Any:
    if columns[0] is None:
        return None

    def beside(*leaves: Array) -> Array:
        return np.concatenate(leaves)

    return map_tree(beside, *columns)
