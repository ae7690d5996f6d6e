"""A toy environment with goals; import it from `relayrl.testing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep, StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words


class PointReach(ScalarEnvironment, StatefulEnvironment):
    """Move a point to a goal in a square; as gymnasium-robotics' environments, it pays −1 until it is there, and 0 then.

    A step moves the point by at most 0.25 in each direction; the square is 10 by 10, so that who moves at random hardly ever
    meets a goal, and learns nothing from −1 everywhere. With `batched` False, `compute_reward` takes one goal at a time.
    """

    def __init__(
        self, *, side: float = 10.0, radius: float = 0.5, episode_length: int = 40, batched: bool = True
    ) -> None:
        self._side, self._radius, self._episode_length, self._batched = side, radius, episode_length, batched
        square = spaces.Box(0.0, side, (2,), np.float32)
        self.observation_space = spaces.Dict({"observation": square, "achieved_goal": square, "desired_goal": square})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._random = np.random.default_rng()
        self._position, self._goal, self._num_steps = np.zeros(2, np.float32), np.zeros(2, np.float32), 0

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._position = np.full(2, self._side / 2, np.float32)
        self._goal = self._random.uniform(0.0, self._side, 2).astype(np.float32)
        self._num_steps = 0
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        moved = self._position + np.clip(np.asarray(action, np.float32), -1.0, 1.0) * np.float32(0.25)
        self._position = np.clip(moved, 0.0, self._side).astype(np.float32)
        self._num_steps += 1
        reward = float(self.compute_reward(self._position, self._goal, {}))
        return ScalarStep(self.build_observation(), reward, False, self._num_steps >= self._episode_length, {})

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Mapping[str, Any]) -> Any:
        """−1 where the goal is further away than the radius, 0 elsewhere; of one pair or of rows of them."""
        if not self._batched and achieved_goal.ndim > 1:
            raise ValueError("one goal at a time")
        return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= self._radius).astype(np.float32) - 1.0

    def build_observation(self) -> dict[str, Array]:
        return {
            "observation": self._position.copy(),
            "achieved_goal": self._position.copy(),
            "desired_goal": self._goal.copy(),
        }

    def get_state(self) -> dict[str, Array]:
        own = {"position": self._position, "goal": self._goal, "num_steps": np.array(self._num_steps)}
        return {**own, "random": generator_to_words(self._random)}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._random = generator_from_words(state["random"])
        self._position, self._goal = np.array(state["position"]), np.array(state["goal"])
        self._num_steps = int(state["num_steps"])
