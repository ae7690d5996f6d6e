"""One group's arrays as the environment contract wants them, and its actions as the worlds want them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Space, leaf_dtype
from relayrl.envs.environment_contract import AgentGroup, FinalObservations, GroupObservation, GroupStep
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.envs.native.native_worlds import Worlds
from relayrl.envs.vector.guarded_vector import bounds
from relayrl.errors import EnvError


class GroupLanes:
    """Observations in the space's dtype, rewards float32, flags per agent.

    Where `Worlds` holds an array in that form already, it is the array; otherwise it is converted after every change.
    """

    def __init__(self, group: AgentGroup, worlds: Worlds, truncated: XArray, xp: ArrayNamespace) -> None:
        """`truncated` `[B]` is where the environment marks the worlds that reached their limit."""
        self._xp = xp
        self._group = group
        shape = (len(truncated), group.num_agents)
        self._source, self._source_reward = worlds.observations[group.name], worlds.rewards[group.name]
        self._dtype: Any = str(leaf_dtype(group.observation_space))
        self.obs = self._in_dtype(self._source, self._dtype)
        self._reward = self._in_dtype(self._source_reward, "float32")
        self._active = ~xp.zeros(shape, "bool")
        self._world_flags = (worlds.terminated[:, None], truncated[:, None])
        # one agent's flags are its world's
        self._flags = self._world_flags if shape[1] == 1 else (xp.zeros(shape, "bool"), xp.zeros(shape, "bool"))
        self._obs_by_lane = self.obs.reshape(shape[0] * shape[1], *self.obs.shape[2:])
        self._zeros = xp.zeros((shape[0],), "int64")
        self._agents = xp.from_host(np.arange(group.num_agents, dtype=np.int64))
        self._action_shape = (*shape, *(group.action_space.shape or ()))
        self._action_dtype: Any = str(leaf_dtype(group.action_space))
        self._choices = choices_of(group.action_space)
        self._int64 = self._agents.dtype

    def as_action(self, action: Any) -> XArray:
        """An action of this group, `[B, N, …]`, as an array of the namespace; choices as int64."""
        action = self._xp.asarray(action)
        if tuple(action.shape) != self._action_shape:
            shapes = f"{tuple(action.shape)}, the environment takes {self._action_shape}"
            raise EnvError(f"actions of group {self._group.name!r} have shape {shapes}")
        if self._choices is None or action.dtype == self._int64:
            return action
        if "int" not in str(action.dtype):
            raise EnvError(f"actions of group {self._group.name!r} are {action.dtype}, the environment takes integers")
        return self._xp.cast(action, "int64")

    def allows(self, action: XArray) -> bool:
        """Whether every discrete action exists; continuous ones are clipped by the worlds."""
        choices = self._choices
        if choices is None:
            return True
        if isinstance(choices, int):
            return self._xp.in_range(action, choices)
        first, last = (self._xp.table(np.asarray(bound)) for bound in choices)
        return not self._xp.count_true((action < first) | (action > last))

    def describe_outside(self, action: XArray) -> tuple[int, str]:
        """The first world with an action that does not exist, and what is wrong with it."""
        values = self._xp.to_host(action)
        first, last = (0, self._choices - 1) if isinstance(self._choices, int) else self._choices or (0, 0)
        world, agent = np.argwhere((values < first) | (values > last))[0][:2]
        agent_id = self._group.agent_ids[agent]
        return int(world), f"action {values[world, agent]} of {agent_id!r} is outside {self._group.action_space}"

    def in_dtype_of_space(self, action: XArray) -> XArray:
        """An action that is allowed, as the worlds take it."""
        is_right = self._choices is not None and self._action_dtype == "int64"  # as `as_action` gave it
        return action if is_right else self._xp.cast(action, self._action_dtype)

    def deliver_observations(self) -> None:
        """Convert the observations, of which some have changed since the last time."""
        if self.obs is not self._source:
            self._xp.copy(self.obs, self._source)

    def deliver_results(self) -> None:
        """Convert what the step just made gave, before any world begins anew."""
        xp = self._xp
        self.deliver_observations()
        if self._reward is not self._source_reward:
            xp.copy(self._reward, self._source_reward)
        if self._flags is not self._world_flags:
            xp.copy(self._flags[0], self._world_flags[0])
            xp.copy(self._flags[1], self._world_flags[1])

    def final(self, ended: XArray) -> FinalObservations | None:
        """What the agents of the worlds `ended` see now, before those begin anew; all of them end together."""
        num_agents = self._group.num_agents
        if num_agents == 1:
            return FinalObservations(ended, self._zeros[: len(ended)], self._obs_by_lane[ended])
        lanes = (ended[:, None] * num_agents + self._agents).reshape(-1)
        return FinalObservations(lanes // num_agents, lanes % num_agents, self._obs_by_lane[lanes])

    def observation(self) -> GroupObservation:
        """What the group sees now."""
        return GroupObservation(self.obs, self._active)

    def step(self, final: FinalObservations | None) -> GroupStep:
        """What the group got from the step just made."""
        return GroupStep(
            self.obs,
            self._active,
            reward=self._reward,
            terminated=self._flags[0],
            truncated=self._flags[1],
            final=final,
        )

    def _in_dtype(self, source: XArray, dtype: Any) -> XArray:
        """`source` itself where it has that dtype, an array like it otherwise."""
        is_right = str(source.dtype).removeprefix("torch.") == dtype
        return source if is_right else self._xp.zeros(tuple(source.shape), dtype)


def choices_of(space: Space) -> int | tuple[Any, Any] | None:
    """How many choices there are from 0 on, or the first and the last choice of each part; None where any number will do."""
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    return bounds(space) if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) else None
