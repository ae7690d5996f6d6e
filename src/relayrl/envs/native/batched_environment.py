"""From arrays of worlds to the environment contract: episodes, auto-reset, final observations, seeds, checkpoints.

Knows nothing about any particular environment (`Worlds` does) and loops over groups of agents only, never over worlds or
agents. Worlds whose episode is over are begun anew as a smaller `Worlds`, which then takes their place in the arrays.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, leaf_dtype
from relayrl.envs.contract import (
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    new_env_ids,
)
from relayrl.envs.native.array_namespace import XArray
from relayrl.envs.native.random_streams import fresh_seed, uniforms, world_keys
from relayrl.envs.native.worlds import Blueprint, Worlds
from relayrl.errors import CheckpointError, EnvError, EnvironmentFailedError

_COUNTERS = ("stream_key", "episode", "elapsed_steps")


class BatchedEnvironment(VectorEnvironment, StatefulEnvironment):
    """`B` worlds of one blueprint behind the `VectorEnvironment` contract."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.groups = blueprint.groups
        self.state_space = blueprint.state_space
        self.device = blueprint.xp.device
        self._xp = blueprint.xp
        self._seed: int | None = None
        self._begun = False

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        if self.env_ids:
            raise EnvError("init_num_envs() was called before; make a new environment for another number of worlds")
        if num_envs < 1:
            raise EnvError(f"num_envs is {num_envs}; at least 1 world is needed")
        xp = self._xp
        self.env_ids = new_env_ids(num_envs)
        self._index = {env_id: b for b, env_id in enumerate(self.env_ids)}
        self.worlds: Worlds = self.blueprint.build(num_envs)
        """The arrays behind the environment, in the arithmetic's own dtype."""
        self._world_ids = xp.from_host(np.arange(num_envs, dtype=np.int64))
        self._stream_key = xp.zeros((num_envs,), "int64")
        self._episode = xp.zeros((num_envs,), "int64")
        self._elapsed_steps = xp.zeros((num_envs,), "int64")
        self._truncated = xp.zeros((num_envs,), "bool")
        self._over = xp.zeros((num_envs,), "bool")
        self._lanes = {name: _Lanes(group, self) for name, group in self.groups.items()}
        self._global_state = self._allocate_global_state()
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        if not self.env_ids:
            raise EnvError("reset() before init_num_envs(); call init_num_envs(B) first")
        if env_ids is not None and not self._begun:
            raise EnvError("the first reset() must be of all worlds; leave env_ids out")
        where = self._world_ids if env_ids is None else self._indices(env_ids)
        if seed is None and not self._begun:
            seed = fresh_seed()
        if seed is None:
            self._episode[where] += 1
        else:
            self._seed = seed
            self._stream_key[where] = world_keys(self._xp, seed, where)
            self._episode[where] = 0
        self._begin(where)
        self._begun = True
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if not self._begun:
            raise EnvError("step() before reset(); call reset() first")
        xp, worlds = self._xp, self.worlds
        worlds.advance({name: lanes.checked(actions) for name, lanes in self._lanes.items()})
        self._elapsed_steps += 1
        xp.greater_equal(self._elapsed_steps, self.blueprint.max_episode_steps, out=self._truncated)
        xp.logical_or(worlds.terminated, self._truncated, out=self._over)
        if self.blueprint.truncation_hides_termination:
            xp.greater(worlds.terminated, self._truncated, out=worlds.terminated)
        for lanes in self._lanes.values():
            lanes.deliver_results(self._truncated)
        finals: dict[str, FinalObservations] = {}
        if xp.any(self._over):
            ended = xp.nonzero(self._over)
            finals = {name: lanes.final(ended) for name, lanes in self._lanes.items()}
            self._episode[ended] += 1
            self._begin(ended)
        self._deliver_global_state()
        groups = {name: lanes.step(finals.get(name)) for name, lanes in self._lanes.items()}
        return VectorStep(groups, episode_over=self._over, state=self._global_state)

    def build_observation(self) -> VectorReset:
        groups = {name: lanes.observation() for name, lanes in self._lanes.items()}
        return VectorReset(groups, state=self._global_state)

    def render(self, world: int) -> Array:
        """`[H, W, 3]` uint8 picture of world `b` as it is now."""
        if not self._begun or not 0 <= world < self.num_envs:
            raise EnvError(f"there is no running world {world}; reset() first, then render 0 … {self.num_envs - 1}")
        state = {name: self._xp.to_host(array[..., world]) for name, array in self.worlds.state.items()}
        return self.worlds.draw(state)

    def get_state(self) -> dict[str, Array]:
        """Counters `[B]` and the worlds' arrays `[B, …]` with their axes reversed (`[2, E, B]` → `[B, E, 2]`), on the host."""
        if not self._begun:
            raise EnvError("get_state() before reset(); there is no state yet")
        counters = dict(zip(_COUNTERS, (self._stream_key, self._episode, self._elapsed_steps), strict=True))
        state = {name: self._xp.to_host(array) for name, array in counters.items()}
        for name, array in self.worlds.state.items():
            state[name] = np.ascontiguousarray(self._xp.to_host(array).T)
        return state

    def set_state(self, state: Mapping[str, Array]) -> None:
        if not self.env_ids:
            raise EnvError("set_state() before init_num_envs(); call init_num_envs(B) first")
        counters = dict(zip(_COUNTERS, (self._stream_key, self._episode, self._elapsed_steps), strict=True))
        targets = counters | dict(self.worlds.state)
        if set(state) != set(targets):
            odd = sorted(set(state) ^ set(targets))
            raise CheckpointError(f"the state is not one of native:{self.blueprint.name}: {odd} are not in both")
        arrays = {name: np.asarray(value).T for name, value in state.items()}
        for name, target in targets.items():
            if arrays[name].shape != tuple(target.shape):
                shape = tuple(target.shape)[::-1]
                raise CheckpointError(f"state {name!r} has shape {np.shape(state[name])}, this environment has {shape}")
        for name, target in targets.items():
            target[...] = self._xp.from_host(arrays[name])
        self.worlds.observe()
        self._deliver_observations(self._world_ids)
        self._begun = True

    def failure(self, reason: str, world: int) -> EnvironmentFailedError:
        """The error that says what went wrong in which world."""
        step = int(self._elapsed_steps[world])
        return EnvironmentFailedError(reason, env_id=self.env_ids[world], seed=self._seed, step=step)

    def _begin(self, where: XArray) -> None:
        """Begin the episodes that the counters of the worlds `where` name."""
        self._elapsed_steps[where] = 0
        draws = uniforms(self._xp, self._stream_key[where], self._episode[where], self.blueprint.num_draws)
        if len(where) == self.num_envs:
            self.worlds.begin(draws)
        else:
            fresh = self.blueprint.build(len(where))
            fresh.begin(draws)
            self.worlds.place(where, fresh)
        self._deliver_observations(where)

    def _deliver_observations(self, where: XArray) -> None:
        for lanes in self._lanes.values():
            lanes.deliver_observations(where)
        self._deliver_global_state()

    def _indices(self, env_ids: Sequence[uuid.UUID]) -> XArray:
        unknown = [env_id for env_id in env_ids if env_id not in self._index]
        if unknown:
            raise EnvError(f"no world has the id {unknown[0]}; use ids from env_ids")
        return self._xp.from_host(np.array(sorted({self._index[env_id] for env_id in env_ids}), np.int64))

    def _allocate_global_state(self) -> XArray | None:
        """`[B, S]`: observations side by side; of a single group, that group's array seen flat."""
        if self.state_space is None:
            return None
        if len(self._lanes) == 1:
            (lanes,) = self._lanes.values()
            return lanes.obs.reshape(self.num_envs, -1)
        return self._xp.zeros((self.num_envs, *(self.state_space.shape or ())), "float32")

    def _deliver_global_state(self) -> None:
        if self._global_state is None or len(self._lanes) == 1:
            return
        column = 0
        for lanes in self._lanes.values():
            flat = lanes.obs.reshape(self.num_envs, -1)
            self._xp.copy(self._global_state[:, column : column + flat.shape[1]], flat)
            column += flat.shape[1]


class _Lanes:
    """One group's arrays as the contract wants them: observations in the space's dtype, rewards float32, flags per agent.

    Where `Worlds` holds an array in that form already, it is the array; otherwise it is converted after every change.
    """

    def __init__(self, group: AgentGroup, env: BatchedEnvironment) -> None:
        self._env = env
        self._xp = xp = env.blueprint.xp
        self._group = group
        self._worlds = env.worlds
        shape = (env.num_envs, group.num_agents)
        source = env.worlds.observations[group.name]
        dtype: Any = str(leaf_dtype(group.observation_space))
        self.obs = source if str(source.dtype).removeprefix("torch.") == dtype else xp.zeros(source.shape, dtype)
        reward = env.worlds.rewards[group.name]
        self._reward = reward if str(reward.dtype).removeprefix("torch.") == "float32" else xp.zeros(shape, "float32")
        self._active = ~xp.zeros(shape, "bool")
        self._terminated = xp.zeros(shape, "bool")
        self._truncated = xp.zeros(shape, "bool")
        self._agents = xp.from_host(np.arange(group.num_agents, dtype=np.int64))
        self._action_shape = (*shape, *(group.action_space.shape or ()))
        self._action_dtype: Any = str(leaf_dtype(group.action_space))
        self._num_choices = int(group.action_space.n) if isinstance(group.action_space, spaces.Discrete) else None

    def checked(self, actions: Mapping[str, Any]) -> XArray:
        """This group's actions as an array of the namespace and the space's dtype; discrete ones are known to exist."""
        if self._group.name not in actions:
            raise EnvError(f"no actions for group {self._group.name!r}; groups are {sorted(self._env.groups)}")
        action = self._xp.asarray(actions[self._group.name])
        if tuple(action.shape) != self._action_shape:
            shape = f"{tuple(action.shape)}, not {self._action_shape}"
            raise EnvError(f"actions of group {self._group.name!r} have shape {shape}")
        if self._num_choices is None:
            return self._xp.cast(action, self._action_dtype)
        if "int" not in str(action.dtype):
            raise EnvError(f"actions of group {self._group.name!r} are {action.dtype}; give integers")
        action = self._xp.cast(action, "int64")
        if not self._xp.in_range(action, self._num_choices):
            raise self._outside(self._xp.to_host(action))
        return action

    def deliver_observations(self, where: XArray) -> None:
        source = self._worlds.observations[self._group.name]
        if self.obs is not source:
            self.obs[where] = self._xp.cast(source[where], "float32")

    def deliver_results(self, truncated: XArray) -> None:
        """Observations, rewards and flags of the step just made, before any world begins anew."""
        xp, worlds = self._xp, self._worlds
        if self.obs is not worlds.observations[self._group.name]:
            xp.copy(self.obs, worlds.observations[self._group.name])
        if self._reward is not worlds.rewards[self._group.name]:
            xp.copy(self._reward, worlds.rewards[self._group.name])
        xp.copy(self._terminated, worlds.terminated[:, None])
        xp.copy(self._truncated, truncated[:, None])

    def final(self, ended: XArray) -> FinalObservations:
        """What the agents of the worlds `ended` see now, before those begin anew; all of them end together."""
        num_agents = self._group.num_agents
        env = (ended[:, None] + 0 * self._agents).reshape(-1)
        agent = (0 * ended[:, None] + self._agents).reshape(-1)
        return FinalObservations(env, agent, self.obs[ended].reshape(len(ended) * num_agents, *self.obs.shape[2:]))

    def observation(self) -> GroupObservation:
        return GroupObservation(self.obs, self._active)

    def step(self, final: FinalObservations | None) -> GroupStep:
        return GroupStep(
            self.obs,
            self._active,
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final=final,
        )

    def _outside(self, action: Array) -> EnvironmentFailedError:
        world, agent = np.argwhere((action < 0) | (action >= self._num_choices))[0]
        name = self._group.agent_ids[agent]
        reason = f"action {action[world, agent]} of {name!r} is outside {self._group.action_space}"
        return self._env.failure(reason, int(world))
