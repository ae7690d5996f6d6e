"""Goal environments, as gymnasium-robotics': what a transition would have paid under another goal.

Observations are a Dict of `observation`, `achieved_goal` and `desired_goal`, and the environment has
`compute_reward(achieved_goal, desired_goal, info)`; with `compute_terminated`, ends follow the goal as well. `info` is an empty
dict, since infos are not kept. One call for all rows is tried first, and compared with single calls on a few of them; an
environment whose function takes only one goal is called row by row.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import Relabelled
from relayrl.errors import EnvError

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
_NUM_COMPARED = 4
_batched: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Which environments' functions take many rows at once."""


def is_goal_space(space: Any) -> bool:
    """Whether observations say what was achieved and what was desired, in numbers of the same shape."""
    if not isinstance(space, spaces.Dict) or not set(GOAL_KEYS) <= set(space.spaces):
        return False
    achieved, desired = space["achieved_goal"], space["desired_goal"]
    return isinstance(achieved, spaces.Box) and isinstance(desired, spaces.Box) and achieved.shape == desired.shape


def has_goals(env: Any) -> bool:
    """Whether `relabel` works on an environment."""
    own = getattr(env, "unwrapped", env)
    return is_goal_space(getattr(env, "observation_space", None)) and callable(getattr(own, "compute_reward", None))


def relabel(env: Any, achieved: Array, desired: Array) -> Relabelled:
    """Rewards and ends of transitions that achieved `achieved` [M, …] under goals `desired` [M, …]."""
    own = getattr(env, "unwrapped", env)
    reward = _of_rows(own, own.compute_reward, achieved, desired, np.float32)
    ends = getattr(own, "compute_terminated", None)
    return Relabelled(reward, _of_rows(own, ends, achieved, desired, np.bool_) if callable(ends) else None)


def _of_rows(env: Any, function: Callable[..., Any], achieved: Array, desired: Array, dtype: Any) -> Array:
    if env not in _batched and len(achieved) > 1:
        _batched[env] = _takes_rows(function, achieved, desired)
    if _batched.get(env, False) and len(achieved) > 1:
        rows = np.asarray(function(achieved, desired, {}))
        if rows.shape == (len(achieved),):
            return rows.astype(dtype)
        if rows.ndim == 0:  # an end that no goal changes
            return np.full(len(achieved), rows, dtype)
    return np.array([function(one, other, {}) for one, other in zip(achieved, desired, strict=True)], dtype)


def _takes_rows(function: Callable[..., Any], achieved: Array, desired: Array) -> bool:
    """Whether one call for some rows gives what a call for each gives."""
    few = slice(min(_NUM_COMPARED, len(achieved)))
    single = [function(one, other, {}) for one, other in zip(achieved[few], desired[few], strict=True)]
    if not all(np.ndim(each) == 0 for each in single):
        raise EnvError(f"compute_reward() gives {single[0]!r:.80} for one goal; it must give a number")
    try:
        together = np.asarray(function(achieved[few], desired[few], {}))
    except Exception:  # noqa: BLE001 - the seam to user code: one that takes a single goal may fail in any way
        return False
    return together.shape == (len(single),) and bool(np.allclose(together, single))
