"""Saving and continuing Gymnasium's classic-control environments, which are scalar and keep everything in `state`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words

_MODULE = "gymnasium.envs.classic_control."
_NAMES = ("CartPoleEnv", "PendulumEnv", "MountainCarEnv", "Continuous_MountainCarEnv", "AcrobotEnv")


class ClassicControlState(StatefulEnvironment):
    """The state of one classic-control environment within its running episode."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._bare: Any = env.unwrapped

    def get_state(self) -> dict[str, Array]:
        return {
            "state": np.array(self._bare.state),
            "random": generator_to_words(self._bare.np_random),
            "elapsed_steps": np.array([limit._elapsed_steps or 0 for limit in self._time_limits()], np.int64),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._env.reset()
        self._bare.state = np.array(state["state"])
        self._bare.np_random = generator_from_words(state["random"])
        for limit, elapsed in zip(self._time_limits(), state["elapsed_steps"].tolist(), strict=True):
            limit._elapsed_steps = elapsed

    def _time_limits(self) -> list[TimeLimit[Any, Any]]:
        return [wrapper for wrapper in wrappers_of(self._env) if isinstance(wrapper, TimeLimit)]


def wrappers_of(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """The wrappers around an environment, outermost first."""
    wrappers: list[gymnasium.Env[Any, Any]] = []
    while isinstance(env, gymnasium.Wrapper):
        wrappers.append(env)
        env = env.env
    return wrappers


def is_classic_control(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether the innermost environment is exactly one of these classes."""
    bare = type(env.unwrapped)
    return bare.__module__.startswith(_MODULE) and bare.__name__ in _NAMES
