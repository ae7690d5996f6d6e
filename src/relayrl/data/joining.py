"""Blocks that follow each other as one: for whoever keeps what collectors make in small pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout, Successors
from relayrl.data.trees import index, map_tree

_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid", "failed", "policy_version")
_OPTIONAL = ("action_mask", "logp", "value", "memory", "state")


def copied(rollout: Rollout) -> Rollout:
    """The same rollout in memory of its own: a builder overwrites its blocks."""
    columns = {name: map_tree(np.array, getattr(rollout, name)) for name in _present(rollout)}
    own = Successors(**map_tree(np.array, _columns_of(rollout.successors)))
    return replace(rollout, **columns, successors=own)


def joined(blocks: Sequence[Rollout]) -> Rollout:
    """Consecutive blocks of the same lanes as one block."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    columns: dict[str, Any] = {
        name: map_tree(lambda *parts: np.concatenate(parts), *(getattr(block, name) for block in blocks))
        for name in _present(first)
    }
    parts = []
    offset = 0
    for block in blocks:
        successors = block.successors
        # Inside the joined block, only rows that ended need what followed them; the next row holds it otherwise.
        kept = np.ones(len(successors), bool)
        if block is not blocks[-1]:
            kept = block.ended[successors.step, successors.lane]
        part = index(_columns_of(successors), kept)
        parts.append({**part, "step": part["step"] + offset})
        offset += block.num_steps
    successors = Successors(**map_tree(lambda *same: np.concatenate(same), *parts))
    return replace(first, **columns, successors=successors)


def _columns_of(successors: Successors) -> dict[str, Any]:
    columns = {field.name: getattr(successors, field.name) for field in fields(successors)}
    return {name: column for name, column in columns.items() if column is not None}


def _present(rollout: Rollout) -> list[str]:
    return [*_COLUMNS, *(name for name in _OPTIONAL if getattr(rollout, name) is not None)]
