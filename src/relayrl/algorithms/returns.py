"""Returns and advantages as pure functions of `[T, L]` columns (T time, L lanes).

`next_value[t]` is the value of what followed row `t`: `value[t + 1]`, or the value of the successor observation where the
lane's episode ended or the block stopped (`with_successor_values`). Only termination cuts it.
"""

from __future__ import annotations

import numpy as np

from relayrl.compiled.loader import kernels
from relayrl.data.columns import Successors
from relayrl.data.trees import Array


def with_successor_values(value: Array, successors: Successors, successor_value: Array) -> Array:
    """[T, L] the value of what followed each row."""
    next_value = np.empty_like(value)
    next_value[:-1] = value[1:]
    next_value[-1] = 0.0
    next_value[successors.step, successors.lane] = successor_value
    return next_value


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    gamma: float,
    lam: float,
) -> Array:
    """[T, L] generalised advantage estimates (Schulman et al., 2016), 0 on invalid rows.

        δ_t = r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t)
        Â_t = δ_t + γ λ (1 − ended_t) Â_{t+1}

    Where a lane does not act on some rows, what arrives on them (rewards, the end) belongs to its last valid row, and the
    next row is its next valid one: discounting counts the lane's own decisions.
    """
    if not valid.all():
        return _gae_over_gaps(reward, value, next_value, terminated, truncated, valid, gamma=gamma, lam=lam)
    compiled = kernels()
    if compiled is not None:
        out = np.empty(reward.shape, np.float32)
        columns = [np.ascontiguousarray(column, np.float32) for column in (reward, value, next_value)]
        flags = [np.ascontiguousarray(flag, np.bool_) for flag in (terminated, truncated)]
        compiled.advantages(*reward.shape, *columns, *flags, gamma, lam, out)
        return out
    return gae_in_numpy(reward, value, next_value, terminated, truncated, gamma=gamma, lam=lam)


def gae_in_numpy(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    lam: float,
) -> Array:
    """`gae` where every lane acts on every row."""
    advantage = reward + gamma * next_value * ~terminated - value
    carry = (gamma * lam) * ~(terminated | truncated)
    for t in range(len(reward) - 2, -1, -1):
        advantage[t] += carry[t] * advantage[t + 1]
    return np.asarray(advantage, np.float32)


def _gae_over_gaps(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    gamma: float,
    lam: float,
) -> Array:
    advantage = np.zeros_like(value)
    ended = terminated | truncated
    ahead_reward, ahead_advantage = np.zeros_like(value[0]), np.zeros_like(value[0])
    ahead_value = next_value[-1].copy()
    for t in range(len(reward) - 1, -1, -1):
        bootstrap = np.where(terminated[t], 0.0, next_value[t])
        ahead_value = np.where(ended[t], bootstrap, ahead_value)
        ahead_advantage = np.where(ended[t], 0.0, ahead_advantage)
        ahead_reward = np.where(ended[t], 0.0, ahead_reward) + reward[t]
        own = ahead_reward + gamma * ahead_value - value[t] + gamma * lam * ahead_advantage
        advantage[t] = np.where(valid[t], own, 0.0)
        ahead_advantage = np.where(valid[t], own, ahead_advantage)
        ahead_value = np.where(valid[t], value[t], ahead_value)
        ahead_reward = np.where(valid[t], 0.0, ahead_reward)
    return np.asarray(advantage, np.float32)


def normalized(advantage: Array) -> Array:
    """Zero mean, unit variance over all entries."""
    return np.asarray((advantage - advantage.mean()) / (advantage.std() + 1e-8), np.float32)


def explained_variance(predicted: Array, target: Array) -> float:
    """1 − Var(target − predicted) / Var(target): 1 is perfect, 0 is no better than a constant."""
    variance = float(np.var(target))
    return 1.0 - float(np.var(target - predicted)) / variance if variance > 0.0 else 0.0
