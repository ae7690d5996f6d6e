"""Demonstrated steps of one policy group as columns, from which minibatches are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.algorithms.updates.torch_update import flat_rows
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Tree, map_tree
from relayrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DemonstratedRows:
    """`[M, …]` the valid rows of some rollouts, as they were recorded."""

    obs: Tree
    action: Tree
    mask: Array | None
    num_rows: int

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> DemonstratedRows:
        """The rows of rollouts that all have masks, or none of them."""
        if len({rollout.action_mask is None for rollout in rollouts}) > 1:
            raise ConfigError(
                "some demonstrations have action masks and others have none; record them for all or for none"
            )
        masks = rollouts[0].action_mask is not None
        obs, action = (_joined([_valid_rows(each, name) for each in rollouts]) for name in ("obs", "action"))
        mask = _joined([_valid_rows(each, "action_mask") for each in rollouts]) if masks else None
        return cls(obs, action, mask, sum(int(np.count_nonzero(each.valid)) for each in rollouts))

    def rows(self, where: Array | slice) -> DemonstratedRows:
        """Some of them."""
        obs, action = (map_tree(lambda leaf: leaf[where], column) for column in (self.obs, self.action))
        mask = None if self.mask is None else self.mask[where]
        num_rows = len(range(*where.indices(self.num_rows))) if isinstance(where, slice) else len(where)
        return DemonstratedRows(obs, action, mask, num_rows)


def _valid_rows(rollout: Rollout, name: str) -> Any:
    valid = np.asarray(rollout.valid, bool).reshape(-1)
    return map_tree(lambda leaf: leaf[valid], flat_rows(getattr(rollout, name)))


def _joined(columns: Sequence[Any]) -> Any:
    return map_tree(lambda *leaves: np.concatenate(leaves), *columns)
