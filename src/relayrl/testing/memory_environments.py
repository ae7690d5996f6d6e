"""Toy environments that only a policy with a memory can solve; import them from `relayrl.testing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep, StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words


class RecallCue(ScalarEnvironment, StatefulEnvironment):
    """Shows one of `num_cues` cues in an episode's first observation, blanks for `delay` steps, then asks for it.

    The observation is `[is_cue_0, …, is_asked]`. The action in the step that asks names the cue: 1 where it is right, else 0,
    which is every episode's return. Other actions do nothing. Without a memory, nothing is better than `1 / num_cues`.
    """

    def __init__(self, *, num_cues: int = 2, delay: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self._num_cues, self._delay = num_cues, delay
        self._random = np.random.default_rng()
        self._cue = self._num_steps = 0

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._cue, self._num_steps = int(self._random.integers(self._num_cues)), 0
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        is_asked = self._num_steps == self._delay + 1
        self._num_steps += 1
        reward = float(is_asked and int(action) == self._cue)
        return ScalarStep(self.build_observation(), reward, is_asked, False, {})

    def build_observation(self) -> Array:
        seen = np.zeros(self._num_cues + 1, np.float32)
        if self._num_steps == 0:
            seen[self._cue] = 1.0
        elif self._num_steps == self._delay + 1:
            seen[-1] = 1.0
        return seen

    def get_state(self) -> dict[str, Array]:
        return {
            "cue": np.array(self._cue),
            "num_steps": np.array(self._num_steps),
            "random": generator_to_words(self._random),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._random = generator_from_words(state["random"])
        self._cue, self._num_steps = int(state["cue"]), int(state["num_steps"])
