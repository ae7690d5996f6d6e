"""What the facade learns from is looked at when it is received; errors name the trajectory, column and row.

Beyond what every sink asks (shapes, dtypes and choices that exist: `relayrl.sinks.value_ranges`), numbers must be finite, and a
mask allows the action that was taken. Rewards and observations of a wider type of the same kind, such as float64, are
converted. Actions outside of a `Box` are taken as they are: a Gaussian acts there until it is clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow_arrays import tree_leaves
from relayrl.data.columns import Trajectory
from relayrl.data.layout_book import name_of, trajectory_name
from relayrl.data.schema import LOGP, POLICY_VERSION, REWARD, VALUE
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, space_leaves, unflatten
from relayrl.errors import ConfigError
from relayrl.sinks.value_ranges import checked_blocks, num_options, row_name

_PLAIN = {leaf.name: leaf.dtype for leaf in (REWARD, POLICY_VERSION, LOGP, VALUE)}


def checked(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the dtypes of their spaces; `ConfigError` names the first that cannot be learned from."""
    found = [_with_own_dtypes(trajectory) for trajectory in trajectories]
    for block in checked_blocks(found):
        _require_finite(block)
        _require_allowed(block)
    return found


def _with_own_dtypes(trajectory: Trajectory) -> Trajectory:
    changed: dict[str, Any] = {}
    for name, dtype in _PLAIN.items():
        column = getattr(trajectory, name)
        if column is not None and _converted(column, dtype) is not column:
            changed[name] = _converted(column, dtype)
    seen, done = trajectory.observation_space, trajectory.action_space
    for name, space in (("obs", seen), ("final_obs", seen), ("action", done)):
        tree = getattr(trajectory, name)
        try:
            converted = _converted_tree(space, tree, name)
        except ConfigError as error:
            raise ConfigError(f"{trajectory_name(trajectory)}: {error}") from error
        if converted is not tree:
            changed[name] = converted
    return replace(trajectory, **changed) if changed else trajectory


def _converted_tree(space: Space, tree: Tree, name: str) -> Tree:
    given = list(tree_leaves(space, tree, name))
    kinds = [leaf_dtype(leaf) for _, leaf in space_leaves(space)]
    own = [_converted(leaf, kind) for leaf, kind in zip(given, kinds, strict=True)]
    same = all(one is other for one, other in zip(given, own, strict=True))
    result: Tree = tree if same else unflatten(space, iter(own))
    return result


def _converted(column: Any, dtype: np.dtype[Any]) -> Any:
    """As `dtype` where that changes no more than the width; itself otherwise, for `layout_book` to refuse."""
    if not isinstance(column, np.ndarray | np.generic) or column.dtype == dtype:
        return column
    return column.astype(dtype) if np.can_cast(column.dtype, dtype, "same_kind") else column


def _require_finite(block: TrajectoryBlock) -> None:
    for leaf, column in zip(block.layout.stored, block.arrays, strict=True):
        if (row := _first_row_not_finite(column)) is not None:
            raise ConfigError(f"{row_name(block.headers, leaf.name, row)} is NaN or infinite")
    for leaf, final in zip(block.layout.successor, block.finals, strict=True):
        if (k := _first_row_not_finite(final)) is not None:
            raise ConfigError(f"{name_of(block.headers, k)}: 'final_{leaf.name}' is NaN or infinite")


def _first_row_not_finite(column: Array) -> int | None:
    if column.dtype.kind != "f" or np.isfinite(column).all():
        return None
    return int(np.argwhere(~np.isfinite(column))[0][0])


def _require_allowed(block: TrajectoryBlock) -> None:
    """Every action is one that its mask allows; so a mask allows at least one."""
    space, leaf = block.layout.action_space, block.layout.action_mask
    if leaf is None or num_options(space) is None:
        return
    mask, (action,) = block.column(leaf), (block.column(each) for each in block.layout.action)
    if isinstance(space, spaces.MultiDiscrete):  # the options of each part follow those of the one before
        begins = np.concatenate([[0], np.cumsum(space.nvec.reshape(-1))[:-1]])
        chosen = action.reshape(len(action), -1) - space.start.reshape(-1) + begins
    else:
        assert isinstance(space, spaces.Discrete)
        chosen = (action - space.start)[:, None]
    is_allowed = np.take_along_axis(mask, chosen.astype(np.int64), 1).all(1)
    if not is_allowed.all():
        row = int(np.argmin(is_allowed))
        raise ConfigError(f"{row_name(block.headers, 'action', row)} is {action[row].tolist()}, which its mask forbids")
