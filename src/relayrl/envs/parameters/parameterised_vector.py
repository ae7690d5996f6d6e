"""Environment parameters for vector environments, which begin the next episode inside `step`: values are given ahead."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    env_seeds,
)
from relayrl.envs.parameters.parameter_settings import ParameterSettings, values_of
from relayrl.envs.vector.vector_proxy import VectorProxy

_STATE = ("parameters/streams", "parameters/next_episodes")


def with_parameters(env: VectorEnvironment, parameters: Mapping[str, ParameterSettings]) -> VectorEnvironment:
    """The environment with parameters for its episodes; it must have `set_parameters`."""
    return _Stateful(env, parameters) if isinstance(env, StatefulEnvironment) else ParameterisedVector(env, parameters)


class ParameterisedVector(VectorProxy):
    """Keeps `set_parameters` of another environment up to date with the episodes that begin next."""

    def __init__(self, env: VectorEnvironment, parameters: Mapping[str, ParameterSettings]) -> None:
        super().__init__(env)
        self._parameters = parameters
        self._lessons = [0] * len(parameters)

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        ids = super().init_num_envs(num_envs)
        self._streams = np.array([secrets.randbits(31) for _ in ids])
        self._next_episodes = np.zeros(num_envs, np.int64)
        self._values = {name: np.zeros(num_envs) for name in self._parameters}
        self._give(np.ones(num_envs, bool))
        return ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        begins = np.array([env_ids is None or each in env_ids for each in self.env_ids])
        if seed is not None:
            self._streams = np.where(begins, np.array(env_seeds(seed, self.num_envs)), self._streams)
            self._next_episodes[begins] = 0
            self._give(begins)
        result = self._env.reset(seed=seed, env_ids=env_ids)
        self._pass_over(begins)
        return result

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        step = self._env.step(actions)
        flags: Any = step.episode_over
        over = flags if self.device == "cpu" else flags.cpu().numpy()
        if np.count_nonzero(over):
            self._pass_over(over.copy())
        return step

    def build_observation(self) -> Any:
        return self._env.build_observation()

    def begin_lessons(self, lessons: Sequence[int]) -> None:
        if list(lessons) != self._lessons:
            self._lessons = list(lessons)
            self._give(np.ones(self.num_envs, bool))

    def _pass_over(self, begun: Array) -> None:
        """The episodes that were next in the environments `begun` [B] have begun."""
        self._next_episodes[begun] += 1
        self._give(begun)

    def _give(self, to: Array) -> None:
        for b in np.flatnonzero(to).tolist():
            numbers = int(self._streams[b]), int(self._next_episodes[b])
            for name, value in values_of(self._parameters, self._lessons, *numbers).items():
                self._values[name][b] = value
        self._env.set_parameters({name: own.copy() for name, own in self._values.items()})


class _Stateful(ParameterisedVector, StatefulEnvironment):
    def get_state(self) -> dict[str, Array]:
        own = dict(zip(_STATE, (self._streams.copy(), self._next_episodes.copy()), strict=True))
        return {**self._saved.get_state(), **own}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._streams, self._next_episodes = (np.array(state[name]) for name in _STATE)
        self._saved.set_state({name: array for name, array in state.items() if name not in _STATE})
        self._give(np.ones(self.num_envs, bool))

    @property
    def _saved(self) -> StatefulEnvironment:
        saved: Any = self._env
        return saved  # type: ignore[no-any-return]
