"""Returns and advantages as pure functions of `[T, L]` columns (T time, L lanes); `gae` takes arrays and tensors alike.

`next_value[t]` is the value of what followed row `t`: `value[t + 1]`, or the value of the successor observation where the
lane's episode ended or the block stopped (`with_successor_values`). Only termination cuts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relayrl.data.trees import Array

if TYPE_CHECKING:
    from relayrl.data.columns import Successors


def with_successor_values(value: Array, successors: Successors, successor_value: Array) -> Array:
    """[T, L] the value of what followed each row."""
    next_value = np.empty_like(value)
    next_value[:-1] = value[1:]
    next_value[-1] = 0.0
    next_value[successors.step, successors.lane] = successor_value
    return next_value


def gae(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    valid: Any,
    *,
    gamma: float,
    lam: float,
) -> Any:
    """[T, L] generalised advantage estimates (Schulman et al., 2016), 0 on invalid rows.

        δ_t = r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t)
        Â_t = δ_t + γ λ (1 − ended_t) Â_{t+1}

    Where a lane does not act on some rows, what arrives on them (rewards, the end) belongs to its last valid row, and the
    next row is its next valid one: discounting counts the lane's own decisions.
    """
    xp: Any = np if isinstance(value, np.ndarray) else torch
    advantage = xp.zeros_like(value)
    ended = terminated | truncated
    ahead_reward, ahead_advantage = xp.zeros_like(value[0]), xp.zeros_like(value[0])
    ahead_value = next_value[-1]
    for t in range(len(reward) - 1, -1, -1):
        bootstrap = xp.where(terminated[t], 0.0, next_value[t])
        ahead_value = xp.where(ended[t], bootstrap, ahead_value)
        ahead_advantage = xp.where(ended[t], 0.0, ahead_advantage)
        ahead_reward = xp.where(ended[t], 0.0, ahead_reward) + reward[t]
        own = ahead_reward + gamma * ahead_value - value[t] + gamma * lam * ahead_advantage
        advantage[t] = xp.where(valid[t], own, 0.0)
        ahead_advantage = xp.where(valid[t], own, ahead_advantage)
        ahead_value = xp.where(valid[t], value[t], ahead_value)
        ahead_reward = xp.where(valid[t], 0.0, ahead_reward)
    return np.asarray(advantage, np.float32) if isinstance(advantage, np.ndarray) else advantage


def normalized(advantage: Array, weight: Array | None = None) -> Array:
    """Zero mean, unit variance over all entries, which count by their `weight` where there is one."""
    if weight is None:
        return np.asarray((advantage - advantage.mean()) / (advantage.std() + 1e-8), np.float32)
    total = weight.sum() + 1e-8
    centred = advantage - (weight * advantage).sum() / total
    return np.asarray(centred / (np.sqrt((weight * centred**2).sum() / total) + 1e-8), np.float32)


def explained_variance(predicted: Array, target: Array) -> float:
    """1 − Var(target − predicted) / Var(target): 1 is perfect, 0 is no better than a constant."""
    variance = float(np.var(target))
    return 1.0 - float(np.var(target - predicted)) / variance if variance > 0.0 else 0.0
