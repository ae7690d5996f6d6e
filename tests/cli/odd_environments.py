"""Environments with one thing wrong each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)


class Odd(gymnasium.Env[Any, Any]):
    def __init__(self, observation: Any = BOX, action: Any = TWO) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


sequence_observation: Callable[[], Odd] = partial(Odd, spaces.Sequence(BOX))
no_observation_space: Callable[[], Odd] = partial(Odd, None)
empty_observation: Callable[[], Odd] = partial(Odd, spaces.Box(-1.0, 1.0, (0,), np.float32))
empty_dict: Callable[[], Odd] = partial(Odd, spaces.Dict({}))
sequence_action: Callable[[], Odd] = partial(Odd, BOX, spaces.Sequence(BOX))
no_action_space: Callable[[], Odd] = partial(Odd, BOX, None)
endless_choices: Callable[[], Odd] = partial(Odd, spaces.Discrete(1 << 40))
endless_actions: Callable[[], Odd] = partial(Odd, BOX, spaces.Discrete(1 << 40))
empty_action: Callable[[], Odd] = partial(Odd, BOX, spaces.Box(-1.0, 1.0, (0,), np.float32))


class RaisesOnClose(Odd):
    def close(self):
        raise RuntimeError("cannot be closed")


class OldReset(Odd):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class OldStep(Odd):
    def step(self, action):
        return self.observation_space.sample(), 1.0, True, {}


class Breaks(Odd):
    def step(self, action):
        raise KeyError("a key of the environment's own")


class ShortMask(Odd):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.ones(3, np.int8)}
