"""Actors that play in environments of their own: `set_env` gives them their environments, `run_env` steps them.

One actor plays an environment with one group of agents. Where there are several groups, each has an actor, whose policy acts
for all agents of the group; they play together, whichever of them `run_env` is called for. Agents die, appear and wait as they
like: trajectories carry the environment's episodes and steps. Log-probabilities are recorded where policies give them, action
masks and global states where the environment has them.

Steps go through the same `Collector` as training, and from there as trajectories to the actor's router. A block of steps is
played with one version of the policy; the next block takes the newest. The last action of an agent that waits when a block ends
follows when it is known what came of it (`data.open_rows`), or when its environments are closed.

When an environment raises, the steps before it are kept as episodes that failed; the next `run_env` begins new ones, or asks
for `set_env` where the failure has closed environments.

Not its job: making environments (`relayrl.envs.environment_registry`), or acting for simulators that ask by themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import numpy as np

from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.trees import Array, Tree, same_columns
from relayrl.errors import ConfigError, EnvError
from relayrl.models.acting.actor import Actor, Decision
from relayrl.runtime.agents.state_manager import ActorHandle
from relayrl.runtime.collector import Collector
from relayrl.runtime.routing.router import RouterDispatcher
from relayrl.runtime.routing.trajectory_buffer import Priority

if TYPE_CHECKING:
    from relayrl.data.open_rows import RolloutSplitter
    from relayrl.envs.environment_contract import AgentGroup, VectorEnvironment
    from relayrl.envs.environment_settings import EnvSettings

MAX_BLOCK_STEPS = 128
OpenRows: TypeAlias = list[tuple[UUID, Trajectory]]
"""With the key of the actor's lane."""


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
    """The environments of one actor, or of one for each group of agents."""

    def __init__(self, handles: Mapping[str, ActorHandle], env: VectorEnvironment, seed: int) -> None:
        for name, group in env.groups.items():
            _check_spaces(handles[name], group)
        self.handles, self._env, self._seed = dict(handles), env, seed
        self._actors = {name: NewestPolicy(handles[name]) for name in env.groups}
        self._lock, self._is_closed = threading.Lock(), False
        self._collector: Collector | None = None
        self._splitters: dict[str, RolloutSplitter] = {}
        self._is_cut_off = self._is_broken = False

    def run(
        self, num_steps: int, dispatcher: RouterDispatcher, before_block: Callable[[Sequence[UUID]], None]
    ) -> EnvRunSummary:
        """Step every environment `num_steps` times, in blocks; `before_block` may raise to stop."""
        if num_steps < 1:
            raise ConfigError(f"run_env() of {num_steps} steps; give at least one")
        keys = {name: handle.lane.key for name, handle in self.handles.items()}
        with self._lock:
            collector = self._start()
            done = 0
            while done < num_steps:
                before_block(tuple(keys.values()))
                if self._is_closed:
                    raise ConfigError("the actor was removed, or given other environments, while it played")
                block_steps = min(MAX_BLOCK_STEPS, num_steps - done)
                versions = {name: actor.take_newest() for name, actor in self._actors.items()}
                try:
                    rollouts = collector.collect(versions, block_steps)
                except BaseException as error:
                    rollouts = collector.cut_off(versions, error)
                    self._is_cut_off, self._is_broken = True, not rollouts
                    self._put(rollouts, keys, dispatcher)
                    raise
                self._put(rollouts, keys, dispatcher)
                done += block_steps
            returns, lengths = collector.take_episodes()
        return EnvRunSummary(done * self._env.num_envs, tuple(returns), tuple(lengths))

    def take_open_rows(self) -> OpenRows:
        """What agents that wait did last, of which it is not known yet what comes of it; nothing while somebody plays."""
        if not self._lock.acquire(blocking=False):
            return []
        try:
            return self._open_rows()
        finally:
            self._lock.release()

    def _open_rows(self) -> OpenRows:
        taken = ((name, splitter.take_open_rows()) for name, splitter in self._splitters.items())
        return [(self.handles[name].lane.key, each) for name, rows in taken for each in rows or ()]

    def close(self) -> OpenRows:
        """Close the environments and return their open rows; who plays in them stops before the next block."""
        self._is_closed = True
        with self._lock:
            self._env.close()
            return self._open_rows()

    def _put(self, rollouts: Mapping[str, Rollout], keys: Mapping[str, UUID], dispatcher: RouterDispatcher) -> None:
        for name, rollout in rollouts.items():
            for trajectory in self._splitters[name].split(rollout):
                ended = trajectory.terminated or trajectory.truncated
                dispatcher.put(keys[name], trajectory, Priority.EPISODE if ended else Priority.FRAGMENT)

    def _start(self) -> Collector:
        if self._is_broken:
            raise ConfigError("the environments failed and cannot go on; give the actor others with set_env()")
        if self._collector is None:
            from relayrl.data.open_rows import RolloutSplitter  # loads Arrow's library

            self._splitters = {name: RolloutSplitter() for name in self._env.groups}
            self._collector = Collector(
                self._env,
                self._actors,
                num_steps=MAX_BLOCK_STEPS,
                seed=self._seed,
                rng=np.random.default_rng(self._seed),
                records_logp=True,
                records_states=self._env.state_space is not None,
            )
        elif self._is_cut_off:
            try:
                self._collector.restart()
            except EnvError as error:
                raise ConfigError(
                    f"the environments failed and cannot go on ({error}); give the actor others with set_env()"
                ) from error
            self._collector.take_episodes()  # of the run that raised
        self._is_cut_off = False
        return self._collector


class EnvRunner:
    """The environments of all actors that have some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environments: dict[UUID, ActorEnvironment] = {}

    def set_env(
        self, handles: ActorHandle | Mapping[str, ActorHandle], env: Any, settings: EnvSettings, seed: int
    ) -> OpenRows:
        """Give an actor, or one for each group of agents, environments; returns the open rows of those that they replace."""
        from relayrl.envs.environment_registry import make_vector
        from relayrl.envs.parameters.parameter_settings import require_no_lessons
        from relayrl.envs.vector.on_host import on_host

        require_no_lessons(settings.parameters)
        vector = on_host(make_vector(env, settings))
        try:
            new = ActorEnvironment(_by_group(handles, vector), vector, seed)
        except ConfigError:
            vector.close()
            raise
        with self._lock:
            keys = [handle.lane.key for handle in new.handles.values()]
            old = {id(each): each for key in keys if (each := self._environments.get(key)) is not None}
            for each in old.values():
                self._forget(each)
            self._environments |= dict.fromkeys(keys, new)
        return [rows for each in old.values() for rows in each.close()]

    def _forget(self, environment: ActorEnvironment) -> None:
        """No actor has it any more; who calls holds the lock."""
        self._environments = {key: each for key, each in self._environments.items() if each is not environment}

    def of(self, handle: ActorHandle) -> ActorEnvironment:
        with self._lock:
            if handle.lane.key not in self._environments:
                raise ConfigError(f"actor {handle.actor_id} has no environment; give it one with set_env()")
            return self._environments[handle.lane.key]

    def drop(self, handle: ActorHandle) -> OpenRows:
        """The actor is gone; so are its environments. Returns their open rows."""
        with self._lock:
            environment = self._environments.get(handle.lane.key)
            if environment is not None:
                self._forget(environment)
        return [] if environment is None else environment.close()

    def take_open_rows(self) -> OpenRows:
        """Those of all environments in which nobody plays."""
        with self._lock:
            environments = list({id(each): each for each in self._environments.values()}.values())
        return [rows for environment in environments for rows in environment.take_open_rows()]

    def close(self) -> OpenRows:
        """Close all environments; returns the open rows that nobody has taken."""
        with self._lock:
            environments, self._environments = self._environments, {}
        unique = {id(each): each for each in environments.values()}
        return [rows for environment in unique.values() for rows in environment.close()]


def _by_group(handles: ActorHandle | Mapping[str, ActorHandle], env: VectorEnvironment) -> Mapping[str, ActorHandle]:
    """The actor of each group; one is enough where there is one group."""
    names = sorted(env.groups)
    if isinstance(handles, ActorHandle):
        if len(names) != 1:
            raise ConfigError(
                f"one actor plays one group of agents; the environment has {names}: give set_env() an actor for each, "
                f"{{{', '.join(f'{name!r}: …' for name in names)}}}"
            )
        return {names[0]: handles}
    if sorted(handles) != names:
        raise ConfigError(f"set_env() was given actors for {sorted(handles)}, the environment has the groups {names}")
    if len(set(handles.values())) != len(names):
        raise ConfigError("an actor plays one group of agents; give set_env() another for each")
    return handles


def _check_spaces(handle: ActorHandle, group: AgentGroup) -> None:
    layout = handle.pages.layout
    fits = same_columns(group.observation_space, layout.observation_space)
    if not fits or group.action_space != layout.action_space:
        raise ConfigError(
            f"the policy maps {layout.observation_space} to {layout.action_space}, "
            f"group {group.name!r} of the environment {group.observation_space} to {group.action_space}"
        )
