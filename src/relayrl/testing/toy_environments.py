"""Toy environments whose every number is known in advance: what tests, examples and benchmarks stand on.

Each class is also a factory: `relayrl.testing:CountingEnv` with keyword options makes one. Environments that exist for
learning are not here, nor are fakes of other components. `Herd` and `TorchCounting` are vector environments; the others are
one environment each. Step numbers count from 1: the first step of an episode is step 1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep, StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words
from relayrl.testing.memory_environments import RecallCue
from relayrl.testing.multi_agent_environments import DyingAgents, HiddenSign, MaskedBandit, MatrixGame, TakingTurns
from relayrl.testing.vector_environments import Herd, TorchCounting

__all__ = [
    "CountingEnv",
    "Crash",
    "Crashing",
    "DyingAgents",
    "Herd",
    "HiddenSign",
    "MaskedBandit",
    "MatrixGame",
    "NestedSpaces",
    "RandomWalk",
    "RecallCue",
    "Slow",
    "TakingTurns",
    "TorchCounting",
]

HANG_S = 3600.0


class CountingEnv(ScalarEnvironment, StatefulEnvironment):
    """Counts its steps: after step `k` the observation is `[k]` and the reward `k`; both actions do the same.

    An episode terminates in step `terminate_at` or is truncated in step `truncate_at`, whichever comes first.
    """

    def __init__(self, *, terminate_at: int | None = 5, truncate_at: int | None = None) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.num_steps = 0
        self._terminate_at = terminate_at
        self._truncate_at = truncate_at

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        self.num_steps = 0
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        self.num_steps += 1
        terminated = self.num_steps == self._terminate_at
        truncated = self.num_steps == self._truncate_at and not terminated
        return ScalarStep(self.build_observation(), float(self.num_steps), terminated, truncated, {})

    def build_observation(self) -> Array:
        return np.array([self.num_steps], np.float32)

    def get_state(self) -> dict[str, Array]:
        return {"num_steps": np.array(self.num_steps)}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self.num_steps = int(state["num_steps"])


class Slow(CountingEnv):
    """A `CountingEnv` whose steps keep a core busy for `step_s` seconds."""

    def __init__(self, *, step_s: float = 0.001, terminate_at: int | None = 5, truncate_at: int | None = None) -> None:
        super().__init__(terminate_at=terminate_at, truncate_at=truncate_at)
        self._step_s = step_s

    def step(self, action: Any) -> ScalarStep:
        end = time.perf_counter() + self._step_s
        while time.perf_counter() < end:
            pass
        return super().step(action)


class Crash(Enum):
    """How a `Crashing` environment fails."""

    RAISE = "raise"
    HANG = "hang"
    EXIT = "exit"
    NAN = "nan"


class Crashing(CountingEnv):
    """A `CountingEnv` that fails in the `at_step`th step of its life, episodes notwithstanding.

    It raises `RuntimeError`, hangs for an hour, ends its process with status 3, or observes NaN. With `seeds`, only
    environments whose last seeded reset had one of them fail, so that one of many can be chosen with `env_seeds`.
    """

    def __init__(
        self,
        *,
        at_step: int = 3,
        how: str | Crash = Crash.RAISE,
        seeds: Sequence[int] | None = None,
        terminate_at: int | None = 5,
    ) -> None:
        super().__init__(terminate_at=terminate_at)
        self._at_step = at_step
        self._how = Crash(how)
        self._seeds = seeds
        self._fails = seeds is None
        self._life_steps = 0

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None and self._seeds is not None:
            self._fails = seed in self._seeds
        return super().reset(seed=seed)

    def step(self, action: Any) -> ScalarStep:
        self._life_steps += 1
        result = super().step(action)
        if self._life_steps != self._at_step or not self._fails:
            return result
        if self._how is Crash.RAISE:
            raise RuntimeError(f"crashed in step {self._life_steps}, as asked")
        if self._how is Crash.HANG:
            time.sleep(HANG_S)
        if self._how is Crash.EXIT:
            os._exit(3)
        return result._replace(observation=np.array([np.nan], np.float32))


class RandomWalk(ScalarEnvironment, StatefulEnvironment):
    """A seeded walk on a line: starts within ±0.5, moves ±0.1 with the action and N(0, 0.05²) by itself, costs |position|.

    Terminates beyond ±1 and is truncated in step `horizon`.
    """

    def __init__(self, *, horizon: int = 20) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._horizon = horizon
        self._random = np.random.default_rng()
        self._position = 0.0
        self._num_steps = 0

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._position = float(self._random.uniform(-0.5, 0.5))
        self._num_steps = 0
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        self._num_steps += 1
        self._position += (-0.1, 0.1)[int(action)] + float(self._random.normal(0.0, 0.05))
        terminated = abs(self._position) > 1.0
        truncated = self._num_steps >= self._horizon and not terminated
        return ScalarStep(self.build_observation(), -abs(self._position), terminated, truncated, {})

    def build_observation(self) -> Array:
        return np.array([self._position], np.float32)

    def get_state(self) -> dict[str, Array]:
        return {
            "position": np.array(self._position),
            "num_steps": np.array(self._num_steps),
            "random": generator_to_words(self._random),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._random = generator_from_words(state["random"])
        self._position = float(state["position"])
        self._num_steps = int(state["num_steps"])


class NestedSpaces(ScalarEnvironment):
    """Nested observations of several dtypes, seeded; the reward is the sum of the `MultiDiscrete([2, 3])` action.

    In step `k` all pixels of the `uint8` camera are `k`; buttons and pose are random. Truncated in step `horizon`.
    """

    def __init__(self, *, horizon: int = 4) -> None:
        self.observation_space = spaces.Dict(
            {
                "buttons": spaces.MultiBinary(3),
                "camera": spaces.Box(0, 255, (4, 4, 1), np.uint8),
                "pose": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(5))),
            }
        )
        self.action_space = spaces.MultiDiscrete([2, 3])
        self._horizon = horizon
        self._random = np.random.default_rng()
        self._num_steps = 0
        self._observation: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._num_steps = 0
        self._observe()
        return ScalarReset(self._observation, {})

    def step(self, action: Any) -> ScalarStep:
        self._num_steps += 1
        self._observe()
        return ScalarStep(self._observation, float(np.sum(action)), False, self._num_steps >= self._horizon, {})

    def build_observation(self) -> dict[str, Any]:
        return self._observation

    def _observe(self) -> None:
        self._observation = {
            "buttons": self._random.integers(0, 2, 3, np.int8),
            "camera": np.full((4, 4, 1), self._num_steps, np.uint8),
            "pose": (self._random.uniform(-1.0, 1.0, 2).astype(np.float32), np.int64(self._random.integers(5))),
        }
