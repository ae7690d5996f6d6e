"""Environments for tests of wrappers, and a wrapper."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.envs.environment_contract import LIFE_LOST


class Lives(gymnasium.Env[Any, Any]):
    """Three lives of two steps each; every step scores 5."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if not getattr(self, "_goes_on", False):
            self._step = 0
        self._goes_on = False
        return np.array([self._step], np.float32), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        self._goes_on = self._step in (2, 4)
        info = {LIFE_LOST: True} if self._goes_on else {}
        return np.array([self._step], np.float32), 5.0, self._step % 2 == 0, False, info


class Told(gymnasium.Env[Any, Any]):
    """A vector and a text."""

    observation_space = spaces.Dict({"numbers": spaces.Box(-1, 1, (3,), np.float32), "text": spaces.Text(9)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"numbers": np.ones(3, np.float32), "text": "go"}, {}

    def step(self, action: Any) -> Any:
        return {"numbers": np.ones(3, np.float32), "text": "go"}, 0.0, False, False, {}


def doubled(env: Any, factor: float = 2.0) -> Any:
    """A wrapper as a function of a user's."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: factor * reward)


class Pictures(gymnasium.Env[Any, Any]):
    """Random RGB pictures, rewards from -3 to 3, episodes of 7 steps."""

    observation_space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left = 7
        return self._picture(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._picture(), float(self.np_random.integers(-3, 4)), self._left == 0, False, {}

    def _picture(self) -> Any:
        return self.np_random.integers(0, 256, (12, 10, 3), dtype=np.uint8)


class Nested(Pictures):
    """A Dict with a number that is counted, a vector and a MultiDiscrete."""

    observation_space = spaces.Dict(
        {
            "b": spaces.Discrete(4, start=2),
            "a": spaces.Box(-1, 1, (2, 2), np.float32),
            "c": spaces.MultiDiscrete([2, 3]),
        }
    )

    def _picture(self) -> Any:
        draw = self.np_random
        return {
            "b": int(draw.integers(2, 6)),
            "a": draw.uniform(-1, 1, (2, 2)).astype(np.float32),
            "c": draw.integers(0, [2, 3]),
        }
