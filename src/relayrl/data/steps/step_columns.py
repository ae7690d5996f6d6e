"""What is known of a step when it is written: the columns that all writers of steps have in common.

Not its job: what columns mean (`columns`), and how rows are laid out in memory (`rollout_builder`, `step_rows`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.trees import Space, allocate, map_tree


def step_columns(
    observation_space: Space,
    action_space: Space,
    *,
    mask_width: int | None,
    with_logp: bool,
    with_value: bool,
    memory_space: Space | None,
) -> dict[str, Any]:
    """For each column, by the name of a trajectory's field, a tree of dtypes: each is one row of a leaf, shape included."""
    number = np.dtype(np.float32)
    columns = {"obs": _row_of(observation_space), "action": _row_of(action_space)}
    columns |= {"reward": number, "policy_version": np.dtype(np.int64)}
    if mask_width is not None:
        columns["action_mask"] = np.dtype((np.bool_, (mask_width,)))
    if with_logp:
        columns["logp"] = number
    if with_value:
        columns["value"] = number
    if memory_space is not None:
        columns["memory"] = _row_of(memory_space)
    return columns


def zero_columns(columns: Any, leading: tuple[int, ...]) -> Any:
    """Memory of such columns, with `leading` axes before each row's own shape."""
    return map_tree(lambda row: np.zeros((*leading, *row.shape), row.base), columns)


def _row_of(space: Space) -> Any:
    return allocate(space, (), lambda shape, dtype: np.dtype((dtype, shape)))
