"""Rows that an update learns from, and which of them it passes over when: shuffled minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relayrl.data.trees import Array, map_tree

if TYPE_CHECKING:
    from relayrl.data.columns import Rollout
    from relayrl.models.networks.shared_rows import SharedRows

Metrics = dict[str, float]

Finish = Callable[[], Metrics]
"""Waits for the rest of an update that was begun; returns its metrics."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy makes of a rollout, before it is changed: rows M = T · L, and the K successors of the rollout."""

    features: Array  # [M, F]
    central: SharedRows | None  # [M, C] what a central critic sees instead
    value: Array  # [T, L] in units of reward
    successor_value: Array  # [K]
    logp: Array  # [M] of the actions, as recorded or as the policy has it


@dataclass(slots=True)
class Batch:
    """Rows that are trained on, flattened to one axis M; features are what the networks see."""

    features: Array
    action: Array
    mask: Array | None
    logp: Array
    advantage: Array
    target: Array
    old_value: Array
    central: SharedRows | None = None  # what a central critic sees instead of the features

    @classmethod
    def of(cls, rollout: Rollout, evaluation: Evaluation, advantage: Array) -> Batch:
        """All rows of a rollout, on which the lane acted or not."""
        action, mask, value = flat_rows(rollout.action), flat_rows(rollout.action_mask), evaluation.value
        advantages, targets, values = (flat_rows(column) for column in (advantage, advantage + value, value))
        return Batch(
            evaluation.features, action, mask, evaluation.logp, advantages, targets, values, evaluation.central
        )

    @property
    def critic_features(self) -> Array | SharedRows:
        """What the critic sees."""
        return self.features if self.central is None else self.central

    def __len__(self) -> int:
        return len(self.advantage)

    def columns(self) -> tuple[Array | SharedRows | None, ...]:
        """All columns, in the order of the fields."""
        own = (self.features, self.action, self.mask, self.logp, self.advantage, self.target, self.old_value)
        return (*own, self.central)

    def rows(self, where: Any) -> Batch:
        """Some of the rows: a view for a slice, a copy for indices."""
        return Batch(*(None if c is None else c[where] for c in self.columns()))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """The rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return Batch(*(_joined(same) for same in zip(*(part.columns() for part in parts), strict=True)))  # type: ignore[arg-type]


def _joined(columns: Sequence[Any]) -> Array | SharedRows | None:
    first = columns[0]
    if first is None:
        return None
    return np.concatenate(columns) if isinstance(first, np.ndarray) else type(first).joined(columns)


def flat_rows(column: Any) -> Any:
    """`[T, L, …]` as `[M, …]`."""
    if column is None:
        return None
    return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), column)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """How often the policy and the value see a batch, and in minibatches of how many rows."""

    num_rows: int
    policy_passes: int
    value_passes: int
    minibatch_rows: int
    rng: np.random.Generator

    @property
    def num_passes(self) -> int:
        """Of whichever has more."""
        return max(self.policy_passes, self.value_passes)

    def draw_order(self, num_passes: int) -> Array | None:
        """[P, M] the rows of the next passes, in the order of each; None where a single minibatch needs no order."""
        if self.minibatch_rows >= self.num_rows:
            return None
        return np.stack([self.rng.permutation(self.num_rows) for _ in range(num_passes)])
