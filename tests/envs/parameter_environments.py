"""Environments that show, as their observation, the parameter that their episode began with."""

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from relayrl import ScalarEnvironment
from relayrl.extend import ScalarReset, ScalarStep

SHOWN = spaces.Box(-100, 100, (1,), np.float32)


class Plain(gymnasium.Env):
    """Episodes of three steps; offers no parameters."""

    observation_space, action_space = SHOWN, spaces.Discrete(2)
    size = -1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_steps = 0
        return np.array([self.size], np.float32), {}

    def step(self, action):
        self._num_steps += 1
        return np.array([self.size], np.float32), 1.0, False, self._num_steps == 3, {}


class Settable(Plain):
    def set_parameters(self, values):
        self.size = values["size"]


class ByOptions(Plain):
    def reset(self, *, seed=None, options=None):
        self.size = (options or {}).get("size", -1.0)
        return super().reset(seed=seed)


class ByConstructor(Plain):
    def __init__(self, size=-1.0):
        self.size = size


class OwnKind(ScalarEnvironment):
    observation_space, action_space = SHOWN, spaces.Discrete(2)

    def __init__(self, size: float = -1.0) -> None:
        self._size, self._num_steps = size, 0

    def reset(self, *, seed=None):
        self._num_steps = 0
        return ScalarReset(self.build_observation(), {})

    def step(self, action):
        self._num_steps += 1
        return ScalarStep(self.build_observation(), 1.0, False, self._num_steps == 3, {})

    def build_observation(self):
        return np.array([self._size], np.float32)


class Pair(ParallelEnv):
    """Two agents with masks, of which the first dies after a step."""

    def __init__(self):
        self.metadata, self.possible_agents = {"name": "pair"}, ["one", "two"]
        self._size = -1.0
        self.observation_spaces = {
            agent: spaces.Dict({"observation": SHOWN, "action_mask": spaces.MultiBinary(2)})
            for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(2) for agent in self.possible_agents}

    def set_parameters(self, values):
        self._size = values["size"]

    def reset(self, seed=None, options=None):
        self.agents, self._num_steps = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert not any(actions.values()), "masked"
        self._num_steps += 1
        ended = {agent: self._num_steps >= (1 if agent == "one" else 3) for agent in self.agents}
        result = self._seen(), dict.fromkeys(self.agents, 1.0), ended, dict.fromkeys(self.agents, False)
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return *result, infos

    def _seen(self):
        seen = {"observation": np.array([self._size], np.float32), "action_mask": np.array([1, 0], np.int8)}
        return dict.fromkeys(self.agents, seen)


def pair():
    return Pair()
