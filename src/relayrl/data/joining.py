"""Blocks that follow each other as one: for whoever keeps what collectors make in small pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout, Successors
from relayrl.data.trees import map_tree

_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid", "failed", "policy_version")
_OPTIONAL = ("action_mask", "logp", "value", "memory")


def copied(rollout: Rollout) -> Rollout:
    """The same rollout in memory of its own: a builder overwrites its blocks."""
    columns = {name: map_tree(np.array, getattr(rollout, name)) for name in _present(rollout)}
    successors = rollout.successors
    own = Successors(successors.step.copy(), successors.lane.copy(), map_tree(np.array, successors.obs))
    return replace(rollout, **columns, successors=own)


def joined(blocks: Sequence[Rollout]) -> Rollout:
    """Consecutive blocks of the same lanes as one block."""
    first = blocks[0]
    columns: dict[str, Any] = {
        name: map_tree(lambda *parts: np.concatenate(parts), *(getattr(block, name) for block in blocks))
        for name in _present(first)
    }
    steps, lanes, observations = [], [], []
    offset = 0
    for block in blocks:
        successors = block.successors
        # Inside the joined block, only rows that ended need what followed them; the next row holds it otherwise.
        kept = np.ones(len(successors), bool)
        if block is not blocks[-1]:
            kept = block.ended[successors.step, successors.lane]
        steps.append(successors.step[kept] + offset)
        lanes.append(successors.lane[kept])
        observations.append(map_tree(lambda leaf, where=kept: leaf[where], successors.obs))
        offset += block.num_steps
    obs = map_tree(lambda *parts: np.concatenate(parts), *observations)
    return replace(first, **columns, successors=Successors(np.concatenate(steps), np.concatenate(lanes), obs))


def _present(rollout: Rollout) -> list[str]:
    return [*_COLUMNS, *(name for name in _OPTIONAL if getattr(rollout, name) is not None)]
