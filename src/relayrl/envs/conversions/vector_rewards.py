"""Environments with several objectives, as mo-gymnasium's: a reward is a vector, and learning needs a number.

`environment.reward_weights` says how: reward = Σ weight · objective. There is no default: which objective matters how much is
the problem itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from relayrl.errors import ConfigError, EnvError


def num_objectives(env: gymnasium.Env[Any, Any]) -> int | None:
    """How many numbers a reward of the environment has, where it says so; None where it says nothing."""
    space = getattr(env.unwrapped, "reward_space", None)
    shape = getattr(space, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and len(shape) == 1 else None


class WeighedRewards(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose rewards are weighed sums of its objectives; `info["vector_reward"]` has the objectives."""

    def __init__(self, env: gymnasium.Env[Any, Any], weights: Sequence[float]) -> None:
        super().__init__(env)
        self._weights = np.asarray(weights, np.float64)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        objectives = np.asarray(reward, np.float64)
        if objectives.shape != self._weights.shape:
            raise EnvError(
                f"environment.reward_weights has {len(self._weights)} numbers, and a reward is {reward!r:.80}; give one weight "
                "for each of its numbers, or leave reward_weights out where rewards are plain numbers"
            )
        weighed = float(objectives @ self._weights)
        return observation, weighed, terminated, truncated, {**info, "vector_reward": objectives}


def with_plain_rewards(
    env: gymnasium.Env[Any, Any], weights: Sequence[float] | None, name: str
) -> gymnasium.Env[Any, Any]:
    """`env` itself where its rewards are numbers, or with its objectives weighed."""
    count = num_objectives(env)
    if weights is None:
        if count is None:
            return env
        raise ConfigError(
            f"{name} gives rewards of {count} numbers; set environment.reward_weights to {count} weights, such as "
            f"{[1.0] * count}, by which they are summed"
        )
    if count is not None and count != len(weights):
        raise ConfigError(f"{name} gives rewards of {count} numbers, environment.reward_weights has {len(weights)}")
    return WeighedRewards(env, weights)
