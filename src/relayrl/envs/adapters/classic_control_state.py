"""Saving and continuing Gymnasium's classic-control environments, which are scalar and keep everything in `state`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words

_MODULE = "gymnasium.envs.classic_control."
_NAMES = ("CartPoleEnv", "PendulumEnv", "MountainCarEnv", "Continuous_MountainCarEnv", "AcrobotEnv")


def state_port(env: Any) -> StatefulEnvironment | None:
    """Where the state of `env` can be read and set: itself, a port to it, or None when it cannot be saved."""
    if isinstance(env, StatefulEnvironment):
        return env
    return ClassicControlState(env) if isinstance(env, gymnasium.Env) and _is_known(env) else None


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
        return [wrapper for wrapper in _wrappers(self._env) if isinstance(wrapper, TimeLimit)]


def _wrappers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """The wrappers around an environment, outermost first."""
    wrappers: list[gymnasium.Env[Any, Any]] = []
    while isinstance(env, gymnasium.Wrapper):
        wrappers.append(env)
        env = env.env
    return wrappers


def _is_known(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether `env` is exactly one of these classes, in wrappers whose state is known too."""
    bare = type(env.unwrapped)
    return (
        bare.__module__.startswith(_MODULE)
        and bare.__name__ in _NAMES
        and all(type(wrapper) in (TimeLimit, OrderEnforcing) for wrapper in _wrappers(env))
    )
