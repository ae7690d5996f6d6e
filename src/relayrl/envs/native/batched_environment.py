"""From arrays of worlds to the environment contract: episodes, auto-reset, final observations, seeds, checkpoints.

Knows nothing about any particular environment (`Worlds` does) and loops over groups of agents only, never over worlds or
agents.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    AgentGroup,
    FinalObservations,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    first_env_of,
    new_env_ids,
)
from relayrl.envs.native.array_namespace import XArray
from relayrl.envs.native.dense_step import DenseGroupStep, DenseStep
from relayrl.envs.native.episode_beginnings import EpisodeBeginnings
from relayrl.envs.native.group_lanes import GroupLanes
from relayrl.envs.native.mortal_lanes import MortalLanes
from relayrl.envs.native.native_worlds import Blueprint, Worlds
from relayrl.envs.native.random_streams import fresh_seed, world_keys
from relayrl.envs.rendering import Drawing, RenderMode
from relayrl.errors import CheckpointError, EnvError, EnvironmentFailedError, UnknownNameError


class BatchedEnvironment(VectorEnvironment, StatefulEnvironment):
    """`B` worlds of one blueprint behind the `VectorEnvironment` contract."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.drawing = Drawing((RenderMode.RGB_ARRAY,), known=(RenderMode.RGB_ARRAY.value,))
        self.groups = blueprint.groups
        self.state_space = blueprint.state_space
        self.state_repeats_observations = blueprint.state_space is not None
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
        self._zero = xp.zeros((), "int64")
        self._one, self._limit = xp.constant(1, "int64"), xp.constant(self.blueprint.max_episode_steps, "int64")
        self._upcoming: dict[str, XArray] = {}  # options of the episodes that begin next
        self._next_limit: XArray | None = None  # [B], where it may be another in every episode
        self._truncated = xp.zeros((num_envs,), "bool")
        self._over = xp.zeros((num_envs,), "bool")
        self._beginnings = EpisodeBeginnings(self.blueprint, num_envs)
        self._lanes = {name: self._lanes_of(group) for name, group in self.groups.items()}
        self._global_state = self._allocate_global_state()
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        if not self.env_ids:
            raise EnvError("reset() before init_num_envs(); call init_num_envs(B) first")
        if env_ids is not None and not self._begun:
            raise EnvError("the first reset() must be of all worlds; leave env_ids out")
        xp, where = self._xp, self._marked(env_ids)
        if seed is None and not self._begun:
            seed = fresh_seed()
        if seed is None:
            self._episode += where
        else:
            self._seed = seed
            xp.copy_where(self._stream_key, world_keys(xp, seed, self._world_ids + first_env_of(seed)), where)
            self._episode *= ~where
            self._beginnings.forget()
        self._begin(where, xp.count_true(where))
        self._begun = True
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if not self._begun:
            raise EnvError("step() before reset(); call reset() first")
        xp, worlds = self._xp, self.worlds
        self._advance(self._checked(actions))
        finals: dict[str, FinalObservations | None] = {}
        final_state = None
        num_ended = xp.count_true(self._over)
        if num_ended:
            ended = xp.nonzero(self._over)
            finals = {name: lanes.final(ended) for name, lanes in self._lanes.items()}
            final_state = self._final_state(finals, num_ended)
            self._episode += self._over
            self._begin(self._over, num_ended)
        else:
            if worlds.alive:
                finals = {name: self._lanes[name].final(self._world_ids[:0]) for name in worlds.alive}
            self._deliver_global_state()
        groups = {name: lanes.step(finals.get(name)) for name, lanes in self._lanes.items()}
        return VectorStep(groups, episode_over=self._over, state=self._global_state, final_state=final_state)

    @property
    def steps_densely(self) -> bool:
        """Whether `step_dense` can stand in for `step`: nobody dies, and every episode has the same options."""
        return not (self.worlds.alive or self._upcoming or self._next_limit is not None)

    def step_dense(self, actions: Mapping[str, XArray]) -> DenseStep:
        """`step` without asking the device anything, where `steps_densely`; `actions` must exist and be of the spaces' dtypes.

        It can be captured in a CUDA graph after it was called once.
        """
        xp, lanes = self._xp, self._lanes
        self._advance(actions)
        final = {name: own.obs + 0 for name, own in lanes.items()}
        self._episode += self._over
        xp.copy_where(self._elapsed_steps, self._zero, self._over)
        self._beginnings.begin_dense(self.worlds, self._over, self._stream_key, self._episode)
        self._deliver_observations()
        steps = {name: own.step(None) for name, own in lanes.items()}
        groups = {name: DenseGroupStep(s.obs, s.reward, s.terminated, s.truncated) for name, s in steps.items()}
        return DenseStep(groups, final, self._over)

    def _advance(self, actions: Mapping[str, XArray]) -> None:
        """One step of every world, and who ended by it; nothing begins anew."""
        xp, worlds = self._xp, self.worlds
        worlds.advance(actions)
        xp.add(self._elapsed_steps, self._one, out=self._elapsed_steps)
        xp.greater_equal(self._elapsed_steps, self._limit, out=self._truncated)
        xp.logical_or(worlds.terminated, self._truncated, out=self._over)
        if worlds.alive:
            self._end_deserted()
        if self.blueprint.truncation_hides_termination:
            xp.greater(worlds.terminated, self._truncated, out=worlds.terminated)
        for lanes in self._lanes.values():
            lanes.deliver_results()

    def set_parameters(self, values: Mapping[str, Array]) -> None:
        xp, limit = self._xp, self.blueprint.limit_option
        offered = [limit, *self.worlds.parameters]
        if unknown := [name for name in values if name not in offered]:
            raise UnknownNameError(f"option of native:{self.blueprint.name} that may change", unknown[0], offered)
        changed = xp.zeros((self.num_envs,), "bool")
        for name, given in values.items():
            if name == limit:
                self._expect_limit(xp.from_host(np.maximum(1, np.rint(given)).astype(np.int64)))
                continue
            target = self.worlds.parameters[name]
            is_whole = xp.to_host(target[:1]).dtype.kind == "i"
            asked = xp.from_host((np.rint(given) if is_whole else given).astype(xp.to_host(target[:1]).dtype))
            changed |= asked != self._upcoming.get(name, target)
            self._upcoming[name] = asked
        self._beginnings.expect(self._upcoming, changed)

    def _expect_limit(self, limits: XArray) -> None:
        if self._next_limit is None:
            self._limit = self._xp.zeros((self.num_envs,), "int64")
            self._xp.copy(self._limit, limits)
        self._next_limit = limits

    def build_observation(self) -> VectorReset:
        groups = {name: lanes.observation() for name, lanes in self._lanes.items()}
        return VectorReset(groups, state=self._global_state)

    @property
    def rates_episodes(self) -> bool:
        return self.blueprint.performance_return is not None

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        rate = self.blueprint.performance_return
        return super().performance_return(rewards) if rate is None else rate(rewards)

    def render(self, world: int) -> Array:
        """`[H, W, 3]` uint8 picture of one world as it is now; worlds count from 0."""
        if not self._begun or not 0 <= world < self.num_envs:
            raise EnvError(f"there is no running world {world}; reset() first, then render 0 … {self.num_envs - 1}")
        arrays = {**self.worlds.parameters, **self.worlds.state}
        state = {name: self._xp.to_host(array[..., world]) for name, array in arrays.items()}
        return self.worlds.draw(state)

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        return [self.render(b) for b in envs] if mode is RenderMode.RGB_ARRAY else super().frames(envs, mode)

    def get_state(self) -> dict[str, Array]:
        """Counters `[B]` and the worlds' arrays `[B, …]` with their axes reversed (`[2, E, B]` → `[B, E, 2]`), on the host."""
        if not self._begun:
            raise EnvError("get_state() before reset(); there is no state yet")
        state = {name: self._xp.to_host(array) for name, array in self._counters().items()}
        for name, array in self.worlds.state.items():
            state[name] = np.ascontiguousarray(self._xp.to_host(array).T)
        return state

    def set_state(self, state: Mapping[str, Array]) -> None:
        if not self.env_ids:
            raise EnvError("set_state() before init_num_envs(); call init_num_envs(B) first")
        targets = {**self._counters(), **self.worlds.state}
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
        self._beginnings.forget()
        self.show_state()
        self._begun = True

    def show_state(self) -> None:
        """Show what agents see in the worlds' state, after that was changed from outside."""
        self.worlds.observe()
        self._deliver_observations()

    @property
    def running(self) -> tuple[XArray, XArray, XArray, int]:
        """What begins and ends episodes, where `steps_densely`: `[B]` keys of their streams, their numbers and their steps,
        which change in place, and the limit of steps."""
        return self._stream_key, self._episode, self._elapsed_steps, int(self._limit)

    def _lanes_of(self, group: AgentGroup) -> GroupLanes:
        if group.name not in self.worlds.alive:
            return GroupLanes(group, self.worlds, self._truncated, self._xp)
        if self.state_space is not None:
            raise EnvError(f"{self.blueprint.name} gives alive and a state_space; a state has no place for the dead")
        return MortalLanes(group, self.worlds, self._truncated, self._xp)

    def _end_deserted(self) -> None:
        """Mark the worlds over in which nobody is alive; groups without `alive` live as long as their world."""
        alive = self.worlds.alive
        if len(alive) == len(self.groups):
            left = [self._xp.any_along(of_group, 1) for of_group in alive.values()]
            self._over |= ~functools.reduce(self._xp.logical_or, left)

    def _counters(self) -> dict[str, XArray]:
        """[B] each: what decides the worlds' future besides their own state."""
        counters = {"stream_key": self._stream_key, "episode": self._episode, "elapsed_steps": self._elapsed_steps}
        counters |= {f"parameter/{name}": self.worlds.parameters[name] for name in self._upcoming}
        return counters if self._next_limit is None else {**counters, "limit": self._limit}

    def _checked(self, actions: Mapping[str, Any]) -> dict[str, XArray]:
        checked = {}
        for name, lanes in self._lanes.items():
            if name not in actions:
                raise EnvError(f"no actions for group {name!r}; step() takes a mapping with {sorted(self._lanes)}")
            action = lanes.as_action(actions[name])
            if not lanes.allows(action):
                world, reason = lanes.describe_outside(action)
                step = int(self._elapsed_steps[world])
                raise EnvironmentFailedError(reason, env_id=self.env_ids[world], seed=self._seed, step=step)
            checked[name] = lanes.in_dtype_of_space(action)
        return checked

    def _begin(self, where: XArray, count: int) -> None:
        """Begin the episodes that the counters of the `count` worlds marked by `where` `[B]` name."""
        self._xp.copy_where(self._elapsed_steps, self._zero, where)
        if self._next_limit is not None:
            self._xp.copy_where(self._limit, self._next_limit, where)
        self._beginnings.begin(self.worlds, where, count, self._stream_key, self._episode)
        self._deliver_observations()

    def _deliver_observations(self) -> None:
        for lanes in self._lanes.values():
            lanes.deliver_observations()
        self._deliver_global_state()

    def _marked(self, env_ids: Sequence[uuid.UUID] | None) -> XArray:
        """[B] bool: the worlds with these ids, or all."""
        if env_ids is None:
            return ~self._xp.zeros((self.num_envs,), "bool")
        unknown = [env_id for env_id in env_ids if env_id not in self._index]
        if unknown:
            raise EnvError(f"no world has the id {unknown[0]}; use ids from env_ids")
        marked = np.zeros(self.num_envs, np.bool_)
        marked[[self._index[env_id] for env_id in env_ids]] = True
        return self._xp.from_host(marked)

    def _allocate_global_state(self) -> XArray | None:
        """`[B, S]`: observations side by side; of a single group, that group's array seen flat."""
        if self.state_space is None:
            return None
        if len(self._lanes) == 1:
            (lanes,) = self._lanes.values()
            return lanes.obs.reshape(self.num_envs, -1)
        return self._xp.zeros((self.num_envs, *(self.state_space.shape or ())), "float32")

    def _final_state(self, finals: Mapping[str, FinalObservations | None], num_ended: int) -> XArray | None:
        """`[K, S]`: all lanes of a world end together, so what they saw last is its last state."""
        if self._global_state is None:
            return None
        seen: list[XArray] = [final.obs for final in finals.values() if final is not None]
        parts = [obs.reshape(num_ended, -1) for obs in seen]
        if len(parts) == 1:
            return parts[0]
        state = self._xp.zeros((num_ended, self._global_state.shape[1]), "float32")
        self._put_side_by_side(state, parts)
        return state

    def _deliver_global_state(self) -> None:
        if self._global_state is None or len(self._lanes) == 1:
            return
        self._put_side_by_side(
            self._global_state, [lanes.obs.reshape(self.num_envs, -1) for lanes in self._lanes.values()]
        )

    def _put_side_by_side(self, target: XArray, parts: list[XArray]) -> None:
        column = 0
        for part in parts:
            self._xp.copy(target[:, column : column + part.shape[1]], part)
            column += part.shape[1]
