"""What `request_action` gives back: one object of arrays for all actors of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from relayrl.data.trees import Array


@dataclass(slots=True, eq=False)  # not frozen: that would cost as much as everything else about it
class ActionRecord:
    """Row `i` is what actor `actor_ids[i]` decided."""

    actor_ids: tuple[UUID, ...]
    action: Array
    """[L, …] as the environment takes them, inside the space's bounds; where the policies of a request act in different spaces,
    an array of objects [L], each an action."""
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
        kinds = {(record.action.dtype, record.action.shape[1:]) for _, record in parts}
        action = joined("action") if len(kinds) == 1 else _side_by_side(len(actor_ids), parts)
        assert action is not None
        assert version is not None
        return ActionRecord(actor_ids, action, joined("logp"), joined("value"), version)


def _side_by_side(num_rows: int, parts: Sequence[tuple[Array, ActionRecord]]) -> Array:
    """Actions of different spaces."""
    actions = np.empty(num_rows, object)
    for rows, record in parts:
        for i, action in zip(rows.tolist(), record.action, strict=True):
            actions[i] = action
    return actions
