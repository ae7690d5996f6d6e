"""What running environments costs beside running them by hand: vectorisers, the vector path, worker processes.

Each row measures RelayRL and its floor in turn in this run. The environments of the worker rows are here because worker
processes must be able to import them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.bench.rows import Row, interleaved, seconds_of
from relayrl.data.trees import Array
from relayrl.envs.adapters import gymnasium_adapter
from relayrl.envs.environment_contract import (
    SINGLE_AGENT,
    ScalarEnvironment,
    ScalarReset,
    ScalarStep,
    VectorEnvironment,
)
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings

_CARTPOLE = "CartPole-v1"
_NUM_SCALAR, _NUM_VECTOR = 64, 1024
_REPETITIONS = 21
_SPIN_S = 200e-6
_MAX_OVERHEAD_US = 60.0


class IdleEnv(ScalarEnvironment):
    """An environment whose step costs next to nothing, so that what is measured is what surrounds it."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        return ScalarReset(self._observation, {})

    def step(self, action: Any) -> ScalarStep:
        return ScalarStep(self._observation, 0.0, False, False, {})

    def build_observation(self) -> Array:
        return self._observation


class SpinningEnv(IdleEnv):
    """An environment whose step keeps a core busy for 200 µs."""

    def step(self, action: Any) -> ScalarStep:
        end_s = time.perf_counter() + _SPIN_S
        while time.perf_counter() < end_s:
            pass
        return super().step(action)


def env_rows() -> list[Row]:
    """Every row about environments."""
    return [_scalar_row(), _vector_row(), _workers_row(), _worker_overhead_row()]


def _scalar_row() -> Row:
    """The loop over plain Python environments, against the same loop without anything kept."""
    num_steps = 100
    factory = partial(gymnasium_adapter.make, _CARTPOLE)
    ours = make_vector(factory, EnvSettings(num_envs=_NUM_SCALAR))
    floor = [gymnasium.make(_CARTPOLE, disable_env_checker=True) for _ in range(_NUM_SCALAR)]
    ours.reset(seed=0)
    for b, env in enumerate(floor):
        env.reset(seed=b)
    actions = _random_actions(num_steps, _NUM_SCALAR)

    plain_actions = [list(row) for row in actions[:, :, 0]]

    def raw_loop() -> None:
        for row in plain_actions:
            for b, env in enumerate(floor):
                _, _, terminated, truncated, _ = env.step(row[b])
                if terminated or truncated:
                    env.reset()

    row = _rate_row(
        f"envs/in_process_{_NUM_SCALAR}", ours, actions, raw_loop, "loop over the same environments", target=0.85
    )
    for env in floor:
        env.close()
    return row


def _vector_row() -> Row:
    """Gymnasium's own vectorised CartPole through the adapter, against itself."""
    num_steps = 100
    ours = make_vector(_CARTPOLE, EnvSettings(num_envs=_NUM_VECTOR))
    floor = gymnasium.make_vec(_CARTPOLE, _NUM_VECTOR, vectorization_mode="vector_entry_point")
    ours.reset(seed=0)
    floor.reset(seed=0)
    actions = _random_actions(num_steps, _NUM_VECTOR)

    def raw_loop() -> None:
        for row in actions[:, :, 0]:
            floor.step(row)

    row = _rate_row(
        f"envs/vector_{_NUM_VECTOR}", ours, actions, raw_loop, "Gymnasium's vector environment", target=0.60
    )
    floor.close()
    return row


def _workers_row() -> Row:
    """Two workers against one, on environments that keep a core busy; needs two free cores."""
    num_envs, num_steps = 8, 30
    actions = _random_actions(num_steps, num_envs)
    one, two = (make_vector(SpinningEnv, EnvSettings(num_envs=num_envs, workers=workers)) for workers in (1, 2))
    for env in (one, two):
        env.reset(seed=0)
    num_env_steps = num_steps * num_envs
    rates = interleaved(
        lambda: num_env_steps / _seconds_of_steps(two, actions),
        lambda: num_env_steps / _seconds_of_steps(one, actions),
        _REPETITIONS,
    )
    for env in (one, two):
        env.close()
    return Row("envs/two_workers", rates[0], "env_steps/s", "one worker", rates[1], rates[0] / rates[1], target=1.7)


def _worker_overhead_row() -> Row:
    """What a vector step costs more because its environment runs in a worker."""
    num_steps = 500
    actions = _random_actions(num_steps, 1)
    there, here = (make_vector(IdleEnv, EnvSettings(num_envs=1, workers=workers)) for workers in (1, 0))
    for env in (there, here):
        env.reset(seed=0)
    seconds = interleaved(
        lambda: _seconds_of_steps(there, actions), lambda: _seconds_of_steps(here, actions), _REPETITIONS
    )
    for env in (there, here):
        env.close()
    overhead_us = (seconds[0] - seconds[1]) / num_steps * 1e6
    return Row(
        "envs/worker_overhead",
        overhead_us,
        "us/vector_step",
        "budget",
        _MAX_OVERHEAD_US,
        _MAX_OVERHEAD_US / overhead_us,
        target=1.0,
    )


def _rate_row(
    name: str, env: VectorEnvironment, actions: Array, raw_loop: Callable[[], None], against: str, *, target: float
) -> Row:
    num_env_steps = actions.shape[0] * actions.shape[1]
    ours, floor = interleaved(
        lambda: num_env_steps / _seconds_of_steps(env, actions),
        lambda: num_env_steps / seconds_of(raw_loop),
        _REPETITIONS,
    )
    env.close()
    return Row(name, ours, "env_steps/s", against, floor, ours / floor, target)


def _random_actions(num_steps: int, num_envs: int) -> Array:
    return np.random.default_rng(0).integers(0, 2, (num_steps, num_envs, 1))


def _seconds_of_steps(env: VectorEnvironment, actions: Array) -> float:
    def work() -> None:
        for row in actions:
            env.step({SINGLE_AGENT: row})

    return seconds_of(work)
