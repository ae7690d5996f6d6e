"""A trajectory in two parts: what it holds before a step of its environment, and the rest.

Both parts are trajectories like any other: the first one's episode goes on, and what the agent saw at its next action is its
final observation. The parts share the memory of the whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.trees import index

_ROWS = ("obs", "action", "reward", "policy_version", "action_mask", "logp", "value", "memory", "state", "step")


def end_of(trajectory: Trajectory) -> int:
    """The step of its environment after the last one that the trajectory covers."""
    return trajectory.first_step + trajectory.num_env_steps


def cut_at_step(trajectory: Trajectory, step: int) -> tuple[Trajectory | None, Trajectory | None]:
    """What was done before `step` of the environment, and from there on; None where nothing was."""
    row = int(np.searchsorted(trajectory.steps, step))
    if row == 0:
        return None, trajectory
    if row == len(trajectory):
        return trajectory, None
    followed: dict[str, Any] = {"final_obs": index(trajectory.obs, row)}
    if trajectory.state is not None:
        followed["final_state"] = index(trajectory.state, row)
    if trajectory.action_mask is not None:
        followed["final_mask"] = trajectory.action_mask[row]
    if trajectory.knows_steps:
        followed["end_step"] = step
    t, rest_id = trajectory, trajectory_id(trajectory.env_id, trajectory.agent_id, trajectory.episode, step)
    return (
        replace(t, **_rows(t, slice(None, row)), **followed, terminated=False, truncated=False, failed=False),
        replace(t, **_rows(t, slice(row, None)), trajectory_id=rest_id, first_step=step),
    )


def _rows(trajectory: Trajectory, rows: slice) -> dict[str, Any]:
    columns = {name: getattr(trajectory, name) for name in _ROWS}
    return {name: index(column, rows) for name, column in columns.items() if column is not None}
