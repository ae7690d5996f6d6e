"""Gymnasium's own vectorised CartPole, kept to the contract exactly.

`CartPoleVectorEnv` resets in the step after an end and draws for all environments from one generator. Here ended
environments are reset in place within the step, and each environment draws from a generator of its own: environment `b`
plays the very episodes
that a scalar `CartPole` with the same seed plays, bit for bit.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import VectorEnv

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    SINGLE_AGENT,
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    env_seeds,
    new_env_ids,
)
from relayrl.envs.generator_words import generator_from_words, generator_to_words
from relayrl.envs.rendering import RenderMode, drawing_of, pictures_of
from relayrl.errors import CheckpointError, EnvError, EnvironmentFailedError

_STATE_SIZE = 4
_STARTS_AHEAD = 32
"""First states drawn per environment at a time: one call of a generator costs as much as many numbers from it."""
_LOW, _HIGH = -0.05, 0.05


def is_cartpole(env: Any) -> bool:
    """Whether `env` is what this file knows how to run."""
    return type(env) is CartPoleVectorEnv


class _Pushes(spaces.MultiDiscrete):
    """The actions of all environments. Gymnasium looks at them in every step, by calls that take a seventh of it."""

    def contains(self, x: Any) -> bool:
        if type(x) is np.ndarray and x.dtype == np.int64 and x.shape == self.shape:
            return not np.count_nonzero(x >> 1)  # of 0 and 1 alone nothing is left
        return super().contains(x)


class CartPoleVector(VectorEnvironment, StatefulEnvironment):
    """`CartPoleVectorEnv` with same-step resets and a random stream per environment."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        # Gymnasium declares `state`, which is an array here, as None.
        self._env: Any = env
        self._env.action_space = _Pushes(np.full(env.num_envs, 2))
        self.drawing = drawing_of(env)
        self.groups: Mapping[str, AgentGroup] = {
            SINGLE_AGENT: AgentGroup(
                SINGLE_AGENT, (SINGLE_AGENT,), env.single_observation_space, env.single_action_space
            )
        }

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        if num_envs != self._env.num_envs:
            raise EnvError(f"asked for {num_envs} environments, {self._env.num_envs} were built")
        self.env_ids = new_env_ids(num_envs)
        self._env.state = np.zeros((_STATE_SIZE, num_envs))
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._seeds: list[int | None] = [None] * num_envs
        self._starts = np.zeros((num_envs, _STARTS_AHEAD, _STATE_SIZE))
        self._next_start = np.full(num_envs, _STARTS_AHEAD)
        self._active = np.ones((num_envs, 1), dtype=np.bool_)
        self._obs = np.zeros((num_envs, _STATE_SIZE), dtype=np.float32)
        self._has_reset = False
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        envs = range(self.num_envs) if env_ids is None else [self.env_ids.index(env_id) for env_id in env_ids]
        if seed is not None:
            seeds = env_seeds(seed, self.num_envs)
            for b in envs:
                self._seeds[b] = seeds[b]
                self._generators[b] = np.random.default_rng(seeds[b])
                self._next_start[b] = _STARTS_AHEAD
        self._begin(np.fromiter(envs, dtype=np.int64))
        self._has_reset = self._has_reset or env_ids is None
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if not self._has_reset:
            raise EnvError("step() before reset(); reset all environments first")
        env = self._env
        action = np.asarray(actions[SINGLE_AGENT])
        if action.shape != (env.num_envs, 1):
            raise EnvError(f"actions have shape {action.shape}, the environment takes {(env.num_envs, 1)}")
        try:
            self._obs, reward, terminated, truncated, _ = env.step(action[:, 0])
        except AssertionError:
            self._refuse(action[:, 0])
            raise
        episode_over = env.prev_done
        final = None
        if np.count_nonzero(episode_over):
            envs = np.flatnonzero(episode_over)
            final = FinalObservations(envs, np.zeros_like(envs), self._obs[envs])
            self._begin(envs)
        step = GroupStep(
            self._obs[:, None],
            self._active,
            reward=reward[:, None],
            terminated=terminated[:, None],
            truncated=truncated[:, None],
            final=final,
        )
        return VectorStep({SINGLE_AGENT: step}, episode_over=episode_over)

    def _refuse(self, pushes: Array) -> None:
        """Raise for the first environment whose action does not exist."""
        for b in np.flatnonzero((pushes != 0) & (pushes != 1)).tolist():
            reason = f"action {pushes[b]} is outside {self._env.single_action_space}"
            raise EnvironmentFailedError(
                reason, env_id=self.env_ids[b], seed=self._seeds[b], step=int(self._env.steps[b])
            )

    def build_observation(self) -> VectorReset:
        """The current observations, as the last `reset` or `step` gave them."""
        return VectorReset({SINGLE_AGENT: GroupObservation(self._obs[:, None], self._active)})

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        return pictures_of(self._env.render, envs) if mode in self.drawing.modes else super().frames(envs, mode)

    def get_state(self) -> dict[str, Array]:
        return {
            "state": np.array(self._env.state),
            "steps": self._env.steps.copy(),
            "starts": self._starts.copy(),
            "next_start": self._next_start.copy(),
            "generators": np.stack([generator_to_words(generator) for generator in self._generators]),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        if state["state"].shape != (_STATE_SIZE, self.num_envs):
            raise CheckpointError(
                f"the state holds {state['state'].shape[-1]} environments, this environment {self.num_envs}"
            )
        self._env.state = np.array(state["state"])
        self._env.steps = np.array(state["steps"])
        self._env.prev_done = np.zeros(self.num_envs, dtype=np.bool_)
        self._starts = np.array(state["starts"])
        self._next_start = np.array(state["next_start"])
        self._generators = [generator_from_words(words) for words in state["generators"]]
        self._obs = self._env.state.T.astype(np.float32)
        self._has_reset = True

    def close(self) -> None:
        self._env.close()

    def _begin(self, envs: Array) -> None:
        """Put `envs` into their next first states."""
        for b in envs[self._next_start[envs] == _STARTS_AHEAD].tolist():
            self._starts[b] = self._generators[b].uniform(_LOW, _HIGH, (_STARTS_AHEAD, _STATE_SIZE))
            self._next_start[b] = 0
        first = self._starts[envs, self._next_start[envs]]
        self._next_start[envs] += 1
        env = self._env
        env.state[:, envs] = first.T
        env.steps[envs] = 0
        # A fresh array: the one that said who was done is the caller's result.
        env.prev_done = np.zeros(env.num_envs, dtype=np.bool_)
        self._obs[envs] = first
