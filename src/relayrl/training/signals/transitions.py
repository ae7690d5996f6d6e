"""The rows of a rollout on which agents acted, with what followed each: what reward signals are computed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Tree, map_tree


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Some rows `[M]` of a rollout; columns are gathered when they are asked for."""

    rollout: Rollout
    row: Array  # [M] t · L + l
    following: Array  # [M] the row whose observation followed, or T · L + k for the k-th successor

    def __len__(self) -> int:
        return len(self.row)

    @property
    def obs(self) -> Tree:
        """[M, …] what the agents saw."""
        return self._rows(self.rollout.obs)

    @property
    def action(self) -> Tree:
        """[M, …] what they did."""
        return self._rows(self.rollout.action)

    @property
    def next_obs(self) -> Tree:
        """[M, …] what they saw next, when they acted again or their episode ended."""
        num_rows = self.rollout.reward.size
        is_row = self.following < num_rows

        def gathered(column: Array, successors: Array) -> Array:
            flat = column.reshape(num_rows, *column.shape[2:])
            rows = flat[np.where(is_row, self.following, 0)]
            rows[~is_row] = successors[self.following[~is_row] - num_rows]
            return rows

        return map_tree(gathered, self.rollout.obs, self.rollout.successors.obs)  # type: ignore[no-any-return]

    def _rows(self, column: Tree) -> Tree:
        return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[self.row], column)  # type: ignore[no-any-return]


class Transitions:
    """All valid rows of a rollout."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self.row = np.flatnonzero(rollout.valid)
        self._following = following_rows(rollout).reshape(-1)

    def batches(self, size: int, order: Array | None = None) -> Iterator[TransitionBatch]:
        """Batches of at most `size` rows, in the order of the rollout or in another one."""
        row = self.row if order is None else self.row[order]
        for begin in range(0, len(row), size):
            part = row[begin : begin + size]
            yield TransitionBatch(self._rollout, part, self._following[part])


def following_rows(rollout: Rollout) -> Array:
    """[T, L] where the observation that followed each row is: the lane's next valid row, or `T · L + k` for its successor `k`.

    A lane that does not act for some rows goes on at its next valid one, as in `returns.gae`.
    """
    T, L = rollout.reward.shape
    row = np.arange(T * L).reshape(T, L)
    successor = np.full((T, L), -1)
    successor[rollout.successors.step, rollout.successors.lane] = T * L + np.arange(len(rollout.successors))
    following = np.empty((T, L), np.int64)
    ahead = row[-1]  # only of lanes without a successor there, which nobody acts in
    for t in range(T - 1, -1, -1):
        ahead = np.where(successor[t] >= 0, successor[t], ahead)
        following[t] = ahead
        ahead = np.where(rollout.valid[t], row[t], ahead)
    return following
