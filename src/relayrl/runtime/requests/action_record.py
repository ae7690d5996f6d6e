"""What `request_action` gives back: one object of arrays for all actors of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.trees import Array, index, leaves, map_tree


@dataclass(slots=True, eq=False)  # not frozen: that would cost as much as everything else about it
class ActionRecord:
    """Row `i` is what actor `actor_ids[i]` decided."""

    actor_ids: tuple[UUID, ...]
    action: Any
    """[L, …] as the environment takes them, inside the space's bounds: an array, or a tree of arrays for Dict and Tuple spaces;
    where the policies of a request act in different spaces, an array of objects [L], each an action."""
    logp: Array | None
    """[L] log-probability of what was drawn; None where the policy's distribution has none."""
    value: Array | None
    """[L] value of the observations in units of reward; None for policies without a critic."""
    policy_version: Array
    """[L] which version of the policy acted."""

    def __len__(self) -> int:
        return len(self.actor_ids)

    @staticmethod
    def merged(actor_ids: tuple[UUID, ...], parts: Sequence[tuple[Array, ActionRecord]]) -> ActionRecord:
        """One record of parts, each with the rows [K] that it fills."""
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))

        def joined(name: str) -> Array | None:
            columns = [getattr(record, name) for _, record in parts]
            if any(column is None for column in columns):
                return None
            return np.asarray(np.concatenate(columns)[order])

        version = joined("policy_version")
        kinds = {
            tuple((path, leaf.dtype, leaf.shape[1:]) for path, leaf in leaves(record.action)) for _, record in parts
        }
        if len(kinds) == 1:
            action = map_tree(lambda *same: np.concatenate(same)[order], *(record.action for _, record in parts))
        else:
            action = _side_by_side(len(actor_ids), parts)
        assert version is not None
        return ActionRecord(actor_ids, action, joined("logp"), joined("value"), version)


def _side_by_side(num_rows: int, parts: Sequence[tuple[Array, ActionRecord]]) -> Array:
    """Actions of different spaces."""
    actions = np.empty(num_rows, object)
    for rows, record in parts:
        for k, i in enumerate(rows.tolist()):
            actions[i] = index(record.action, k)
    return actions
