"""What action masks leave to choose from.

A mask `[…, A]` is True where an action is allowed; the components of a MultiDiscrete space stand side by side, and each of them
needs an action of its own. So do the Discrete and MultiDiscrete leaves of a nested space; its other leaves are never masked.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array, Space, space_leaves
from relayrl.errors import ActionMaskError, ConfigError


def mask_parts(action_space: Space) -> tuple[int, ...]:
    """Entries that each choice has in a mask; none where actions cannot be masked."""
    if isinstance(action_space, spaces.Discrete):
        return (int(action_space.n),)
    if isinstance(action_space, spaces.MultiDiscrete):
        return tuple(action_space.nvec.ravel().tolist())
    if isinstance(action_space, spaces.Dict | spaces.Tuple):
        return tuple(size for _, leaf in space_leaves(action_space) for size in mask_parts(leaf))
    return ()


def allows_nothing(mask: Array, parts: tuple[int, ...]) -> Array:
    """[…] rows on which some choice has no action left."""
    if len(parts) == 1:
        return np.asarray(~mask.any(-1))
    return np.asarray(~np.logical_or.reduceat(mask, _begins(parts), axis=-1).all(-1))


def require_allowed(trajectory: Trajectory) -> None:
    """Raise where a step of a trajectory with masks allows nothing, or where its masks do not fit its actions."""
    mask, last, parts = trajectory.action_mask, trajectory.final_mask, mask_parts(trajectory.action_space)
    if mask is None:
        return
    expected = (len(trajectory), sum(parts))
    if not parts or mask.shape != expected or (last is not None and last.shape != expected[1:]):
        shapes = f"{list(mask.shape)} and {None if last is None else list(last.shape)}"
        raise ConfigError(
            f"a trajectory of {trajectory.agent_id!r} has action_mask and final_mask of shapes {shapes}, its actions "
            f"{trajectory.action_space} take {list(expected)} and {list(expected[1:])}"
        )
    stuck = allows_nothing(mask, parts)
    if np.count_nonzero(stuck):
        step = trajectory.first_step + int(np.argmax(stuck))
        who = f"agent {trajectory.agent_id!r} of environment {trajectory.env_id}"
        raise ActionMaskError(f"{who} at step {step} of episode {trajectory.episode}")


def _begins(parts: tuple[int, ...]) -> Array:
    return np.cumsum((0, *parts[:-1]))
