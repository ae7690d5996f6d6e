"""Actors that play in environments of their own: `set_env` gives one its environments, `run_env` steps them.

Steps go through the same `Collector` as training, and from there as trajectories to the actor's router. A block of steps is
played with one version of the policy; the next block takes the newest.

Not its job: making environments (`relayrl.envs.environment_registry`), or acting for simulators that ask by themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor, Decision
from relayrl.runtime.agents.state_manager import ActorHandle
from relayrl.runtime.collector import Collector
from relayrl.runtime.routing.router import RouterDispatcher
from relayrl.runtime.routing.trajectory_buffer import Priority

if TYPE_CHECKING:
    from relayrl.envs.environment_contract import VectorEnvironment
    from relayrl.envs.environment_settings import EnvSettings

MAX_BLOCK_STEPS = 128


@dataclass(frozen=True, slots=True)
class EnvRunSummary:
    """What `run_env` did."""

    num_env_steps: int
    """Steps, summed over environments."""
    returns: tuple[float, ...]
    """Returns of the episodes that ended."""
    lengths: tuple[int, ...]
    """Their lengths in steps."""


class NewestPolicy(Actor):
    """Acts with one version of an actor's policy until the newest is taken."""

    def __init__(self, handle: ActorHandle) -> None:
        self._handle = handle
        self.take_newest()
        self.memory_width = self._policy.model.layout.memory_width

    def take_newest(self) -> int:
        """Act with the newest policy from now on; gives its version."""
        self._policy = self._handle.slot.policy
        self.head = self._policy.model.actor.head
        return self._policy.version

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._policy.model.actor.distribution(obs, mask)

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        return self._policy.decide(obs, mask, memory, rng)


class ActorEnvironment:
    """The environments of one actor."""

    def __init__(self, handle: ActorHandle, env: VectorEnvironment, seed: int) -> None:
        self._handle, self._env, self._seed = handle, env, seed
        self._actor = NewestPolicy(handle)
        self._lock, self._is_closed = threading.Lock(), False
        self._collector: Collector | None = None
        self._max_block_steps = 0
        _check_spaces(handle, env)

    def run(self, num_steps: int, dispatcher: RouterDispatcher, before_block: Callable[[UUID], None]) -> EnvRunSummary:
        """Step every environment `num_steps` times, in blocks; `before_block` may raise to stop."""
        if num_steps < 1:
            raise ConfigError(f"run_env() of {num_steps} steps; give at least one")
        key = self._handle.lane.key
        with self._lock:
            collector = self._start(num_steps)
            done = 0
            while done < num_steps:
                before_block(key)
                if self._is_closed:
                    raise ConfigError(
                        f"actor {self._handle.actor_id} was removed, or given other environments, while it played"
                    )
                block_steps = min(self._max_block_steps, num_steps - done)
                for rollout in collector.collect(self._actor.take_newest(), block_steps).values():
                    for trajectory in rollout.trajectories():
                        ended = trajectory.terminated or trajectory.truncated
                        dispatcher.put(key, trajectory, Priority.EPISODE if ended else Priority.FRAGMENT)
                done += block_steps
            returns, lengths = collector.take_episodes()
        return EnvRunSummary(done * self._env.num_envs, tuple(returns), tuple(lengths))

    def close(self) -> None:
        """Close the environments; who plays in them stops before the next block."""
        self._is_closed = True
        with self._lock:
            self._env.close()

    def _start(self, num_steps: int) -> Collector:
        if self._collector is None:
            self._max_block_steps = min(num_steps, MAX_BLOCK_STEPS)
            (group,) = self._env.groups
            self._collector = Collector(
                self._env,
                {group: self._actor},
                num_steps=self._max_block_steps,
                seed=self._seed,
                rng=np.random.default_rng(self._seed),
            )
        return self._collector


class EnvRunner:
    """The environments of all actors that have some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environments: dict[UUID, ActorEnvironment] = {}

    def set_env(self, handle: ActorHandle, env: Any, settings: EnvSettings, seed: int) -> None:
        """Give an actor environments, in place of those it has."""
        from relayrl.envs.environment_registry import make_vector
        from relayrl.envs.vector.on_host import on_host

        new = ActorEnvironment(handle, on_host(make_vector(env, settings)), seed)
        with self._lock:
            old = self._environments.pop(handle.lane.key, None)
            self._environments[handle.lane.key] = new
        if old is not None:
            old.close()

    def of(self, handle: ActorHandle) -> ActorEnvironment:
        with self._lock:
            if handle.lane.key not in self._environments:
                raise ConfigError(f"actor {handle.actor_id} has no environment; give it one with set_env()")
            return self._environments[handle.lane.key]

    def drop(self, handle: ActorHandle) -> None:
        """The actor is gone; so are its environments."""
        with self._lock:
            environment = self._environments.pop(handle.lane.key, None)
        if environment is not None:
            environment.close()

    def close(self) -> None:
        """Close all environments."""
        with self._lock:
            environments, self._environments = self._environments, {}
        for environment in environments.values():
            environment.close()


def _check_spaces(handle: ActorHandle, env: VectorEnvironment) -> None:
    layout = handle.pages.layout
    if len(env.groups) != 1:
        raise ConfigError(f"one actor plays one group of agents; the environment has {sorted(env.groups)}")
    (group,) = env.groups.values()
    if group.observation_space != layout.observation_space or group.action_space != layout.action_space:
        raise ConfigError(
            f"the policy maps {layout.observation_space} to {layout.action_space}, "
            f"the environment {group.observation_space} to {group.action_space}"
        )
