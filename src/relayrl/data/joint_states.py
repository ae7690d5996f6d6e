"""Global states of worlds from the trajectories of their agents, each of which holds its world's states for its own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.state_rows import BlockStates
from relayrl.data.trees import Array, map_tree, write
from relayrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PlacedStates:
    """A trajectory of an agent in `world`, whose first step is on `row`."""

    trajectory: Trajectory
    world: int
    row: int


def joint_states(placed: Sequence[PlacedStates], num_steps: int, num_worlds: int) -> BlockStates | None:
    """States `[T, B, …]` of worlds, zeros where nobody recorded any; None where the trajectories have none."""
    given = [p for p in placed if p.trajectory.state is not None]
    if not given:
        return None
    if len(given) != len(placed):
        raise ConfigError("some trajectories have states and others do not; record them for all agents or for none")

    def like(leaf: Array) -> Array:
        return np.zeros((num_steps, num_worlds, *leaf.shape[1:]), leaf.dtype)

    now: Any = map_tree(like, given[0].trajectory.state)
    for p in given:
        end = p.row + len(p.trajectory)
        write(now, (slice(p.row, end), p.world), p.trajectory.state)
        if p.trajectory.failed:
            write(now, (end, p.world), p.trajectory.final_state)
    after = map_tree(np.zeros_like, now)
    map_tree(lambda following, state: following.__setitem__(slice(-1), state[1:]), after, now)
    for p in given:
        last = p.row + len(p.trajectory) - 1 + p.trajectory.failed
        write(after, (last, p.world), p.trajectory.final_state)
    return BlockStates(now, after)
