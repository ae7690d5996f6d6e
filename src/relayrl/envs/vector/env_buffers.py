"""The arrays in which environments leave what they see, and find what to do.

`allocate_buffers` lays out the same arrays in the same order for whoever asks, so that the memory may be private or
shared between processes. An environment loop fills its slice of them, a vector environment reads all of them; nothing here
knows about processes or steps.

Observations, states and `alive` are kept twice: a step writes the half that `flip` made current, so that the last good
observation of an environment survives whatever happens while the next one is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from relayrl.data.trees import Array, Space, Tree, allocate, index, map_tree, write
from relayrl.envs.agent_groups import mask_size
from relayrl.envs.environment_contract import AgentGroup, FinalObservations, GroupObservation, GroupStep
from relayrl.envs.rendering import NOT_DRAWN, Drawing
from relayrl.errors import EnvError

Allocator: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

NO_SEED = -1
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class EnvLayout:
    """What every environment of a run looks like: enough to size its arrays."""

    groups: Mapping[str, AgentGroup]
    state_space: Space | None = None
    state_repeats_observations: bool = False
    rates_episodes: bool = False  # whether `performance_return` is the environment's own
    drawing: Drawing = NOT_DRAWN
    has_goals: bool = False  # whether `relabel` works
    num_parameters: int = 0  # that are given to environments when episodes begin


@dataclass(frozen=True, slots=True)
class StateBuffers:
    """Global states of the environments."""

    now: tuple[Tree, Tree]  # two halves, [B, …] each
    final: Tree  # [B, …], holds something where an episode ended in the current step

    def part(self, envs: slice) -> StateBuffers:
        """The same arrays, seen by a slice of the environments."""
        return StateBuffers((index(self.now[0], envs), index(self.now[1], envs)), index(self.final, envs))


@dataclass(frozen=True, slots=True)
class GroupBuffers:
    """Arrays of one group. `alive` is True for agents that are in the running episode and have not ended in it."""

    action: Tree  # [B, N, …]
    obs: tuple[Tree, Tree]  # two halves, [B, N, …] each
    alive: tuple[Array, Array]  # two halves, [B, N] bool each
    active: Array  # [B, N] bool
    action_mask: Array | None  # [B, N, A] bool
    reward: Array  # [B, N] float32
    terminated: Array  # [B, N] bool
    truncated: Array  # [B, N] bool
    final_obs: Tree  # [B, N, …], holds something where a lane ended in the current step
    final_mask: Array | None  # [B, N, A] bool, likewise

    def observation(self, half: int) -> GroupObservation:
        """What the group sees now."""
        return GroupObservation(self.obs[half], self.active, self.action_mask)

    def step(self, half: int) -> GroupStep:
        """What the group got from the step just made."""
        ended, final = self.terminated | self.truncated, None
        if np.count_nonzero(ended):  # a third of the cost of np.nonzero
            env, agent = np.nonzero(ended)
            mask = None if self.final_mask is None else self.final_mask[env, agent]
            final = FinalObservations(env, agent, index(self.final_obs, (env, agent)), mask)
        return GroupStep(
            self.obs[half],
            self.active,
            self.action_mask,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            final=final,
        )

    def clear_results(self) -> None:
        """Zero rewards and flags before a step."""
        self.reward.fill(0.0)
        self.terminated.fill(False)
        self.truncated.fill(False)

    def part(self, envs: slice) -> GroupBuffers:
        """The same arrays, seen by a slice of the environments."""
        return GroupBuffers(
            action=index(self.action, envs),
            obs=(index(self.obs[0], envs), index(self.obs[1], envs)),
            alive=(self.alive[0][envs], self.alive[1][envs]),
            active=self.active[envs],
            action_mask=None if self.action_mask is None else self.action_mask[envs],
            reward=self.reward[envs],
            terminated=self.terminated[envs],
            truncated=self.truncated[envs],
            final_obs=index(self.final_obs, envs),
            final_mask=None if self.final_mask is None else self.final_mask[envs],
        )


@dataclass(frozen=True, slots=True)
class EnvBuffers:
    """Everything that passes between environments and the vector environment that they make up."""

    groups: Mapping[str, GroupBuffers]
    states: StateBuffers | None
    episode_over: Array  # [B] bool
    selected: Array  # [B] bool: the environments that a reset or restart is about
    reset_seed: Array  # [B] int64: the seed of that reset, NO_SEED for none
    busy_env: Array  # [B] int64: entry 0 of a slice is the environment that its loop is in, counted within the slice
    current: Array  # [1] int64: which half is current
    gives_states: Array  # [1] bool: whether anybody asks for states
    lessons: Array  # [P] int64: the lesson of each parameter, for episodes that begin from now on

    @property
    def half(self) -> int:
        """The half of the doubled arrays that the last step or reset wrote."""
        return int(self.current[0])

    @property
    def state(self) -> Tree | None:
        """[B, …] the state of each environment now."""
        return self.states.now[self.half] if self.states is not None and self.gives_states[0] else None

    @property
    def final_state(self) -> Tree | None:
        """[K, …] the states in which the episodes of `episode_over` ended."""
        if self.states is None or not self.gives_states[0] or not self.episode_over.any():
            return None
        return index(self.states.final, np.flatnonzero(self.episode_over))  # type: ignore[no-any-return]

    def flip(self) -> None:
        """Make the other half current, before a step."""
        self.current[0] ^= 1

    def part(self, envs: slice) -> EnvBuffers:
        """The same arrays, seen by a slice of the environments."""
        return EnvBuffers(
            groups={name: group.part(envs) for name, group in self.groups.items()},
            states=None if self.states is None else self.states.part(envs),
            episode_over=self.episode_over[envs],
            selected=self.selected[envs],
            reset_seed=self.reset_seed[envs],
            busy_env=self.busy_env[envs],
            current=self.current,
            gives_states=self.gives_states,
            lessons=self.lessons,
        )

    def void(self, envs: Sequence[int]) -> None:
        """Make the current step of `envs` a failed one: no reward, every living lane truncated at its last good row."""
        before = self.half ^ 1
        rows = list(envs)
        for group in self.groups.values():
            group.reward[rows] = 0.0
            group.terminated[rows] = False
            group.truncated[rows] = group.alive[before][rows]
            write(group.final_obs, rows, index(group.obs[before], rows))
            if group.final_mask is not None:
                group.final_mask[rows] = True
        if self.states is not None:
            write(self.states.final, rows, index(self.states.now[before], rows))
        self.episode_over[rows] = True


def allocate_buffers(layout: EnvLayout, num_envs: int, make: Allocator = np.zeros) -> EnvBuffers:
    """Arrays for `num_envs` environments; `make` is called in an order that depends on the arguments alone."""
    flag, count = np.dtype(np.bool_), np.dtype(np.int64)
    return EnvBuffers(
        groups={name: _allocate_group(group, num_envs, make) for name, group in layout.groups.items()},
        states=None if layout.state_space is None else _allocate_states(layout.state_space, num_envs, make),
        episode_over=make((num_envs,), flag),
        selected=make((num_envs,), flag),
        reset_seed=make((num_envs,), count),
        busy_env=make((num_envs,), count),
        current=make((1,), count),
        gives_states=make((1,), flag),
        lessons=make((max(1, layout.num_parameters),), count),
    )


def _allocate_states(space: Space, num_envs: int, make: Allocator) -> StateBuffers:
    both = allocate(space, (2, num_envs), make)
    return StateBuffers((index(both, 0), index(both, 1)), allocate(space, (num_envs,), make))


def _allocate_group(group: AgentGroup, num_envs: int, make: Allocator) -> GroupBuffers:
    lanes = (num_envs, group.num_agents)
    flag = np.dtype(np.bool_)
    obs = allocate(group.observation_space, (2, *lanes), make)
    alive = make((2, *lanes), flag)
    masked = (*lanes, mask_size(group.action_space))
    return GroupBuffers(
        action=allocate(group.action_space, lanes, make),
        obs=(index(obs, 0), index(obs, 1)),
        alive=(alive[0], alive[1]),
        active=make(lanes, flag),
        action_mask=make(masked, flag) if group.masks_actions else None,
        reward=make(lanes, np.dtype(np.float32)),
        terminated=make(lanes, flag),
        truncated=make(lanes, flag),
        final_obs=allocate(group.observation_space, lanes, make),
        final_mask=make(masked, flag) if group.masks_actions else None,
    )


class ByteCounter:
    """An allocator that only adds up how many bytes `BufferCarver` will need."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        placeholder = np.broadcast_to(np.zeros((), dtype), shape)
        self.num_bytes = _aligned(self.num_bytes) + placeholder.nbytes
        return placeholder


class BufferCarver:
    """An allocator that cuts arrays out of one block of memory, which the arrays keep alive."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._used = 0

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        start = _aligned(self._used)
        array = np.ndarray(shape, dtype, buffer=self._memory, offset=start)
        self._used = start + array.nbytes
        return array


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def copy_actions(buffers: Mapping[str, GroupBuffers], actions: Mapping[str, Any]) -> None:
    """Copy the actions of every group into its buffer; shapes must match exactly."""
    for name, group in buffers.items():
        if name not in actions:
            raise EnvError(f"no actions for group {name!r}; step() takes a mapping with {sorted(buffers)}")
        map_tree(copy_exactly, group.action, actions[name])


def copy_exactly(target: Array, source: Any) -> None:
    """Copy one array of actions into another; raises where shapes differ, or numbers would change."""
    array = np.asarray(source)
    if array.shape != target.shape or not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise EnvError(
            f"actions are {array.dtype}{list(array.shape)}, the environment takes {target.dtype}{list(target.shape)}"
        )
    np.copyto(target, array, casting="same_kind")
