"""Wrappers of environments with several agents: keys of observations dropped, episodes limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Space, Tree
from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentReset, MultiAgentStep
from relayrl.envs.wrappers.dropped_keys import space_without, tree_without


class AgentsWrapper(MultiAgentEnvironment):
    """An environment in front of another, which decides everything that is not overridden."""

    def __init__(self, env: MultiAgentEnvironment) -> None:
        self.env = env
        self.possible_agents = env.possible_agents
        self.observation_spaces = env.observation_spaces
        self.action_spaces = env.action_spaces
        self.render_mode: str | None = getattr(env, "render_mode", None)
        self.metadata: Mapping[str, Any] = getattr(env, "metadata", {})

    def render(self) -> Any:
        drawn: Any = self.env  # the contract leaves pictures to whoever makes them
        return drawn.render()

    @property
    def agents(self) -> Sequence[str]:
        return self.env.agents

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        return self.env.reset(seed=seed)

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        return self.env.step(actions)

    def acting_agents(self) -> Sequence[str]:
        return self.env.acting_agents()

    def action_masks(self) -> Mapping[str, Array]:
        return self.env.action_masks()

    @property
    def masks_actions(self) -> bool:
        return self.env.masks_actions

    @property
    def rates_episodes(self) -> bool:
        return self.env.rates_episodes

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        return self.env.performance_return(rewards)

    def state(self) -> Tree | None:
        return self.env.state()

    @property
    def state_space(self) -> Space | None:
        return self.env.state_space

    @property
    def state_repeats_observations(self) -> bool:
        return self.env.state_repeats_observations

    def build_observation(self) -> Any:
        return self.env.build_observation()

    def close(self) -> None:
        self.env.close()

    def get_own_state(self) -> dict[str, Array]:
        """What the wrapper itself remembers."""
        return {}

    def set_own_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `get_own_state`."""


class AgentsKeysDropped(AgentsWrapper):
    """Every agent's observations without some keys."""

    def __init__(self, env: MultiAgentEnvironment, keys: Sequence[str]) -> None:
        super().__init__(env)
        self._keys = keys
        self.observation_spaces = {agent: space_without(own, keys) for agent, own in env.observation_spaces.items()}

    @property
    def state_repeats_observations(self) -> bool:
        return False

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        result = self.env.reset(seed=seed)
        return result._replace(observations=self._cut(result.observations))

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        result = self.env.step(actions)
        return result._replace(observations=self._cut(result.observations))

    def build_observation(self) -> Any:
        return self._cut(self.env.build_observation())

    def _cut(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: tree_without(dict(own), self._keys) for agent, own in observations.items()}


class AgentsTimeLimit(AgentsWrapper):
    """Truncates every agent that is alive when an episode has `max_episode_steps` steps."""

    def __init__(self, env: MultiAgentEnvironment, max_episode_steps: int) -> None:
        super().__init__(env)
        self._limit, self._num_steps = max_episode_steps, 0

    @property
    def agents(self) -> Sequence[str]:
        return () if self._num_steps >= self._limit else self.env.agents

    def acting_agents(self) -> Sequence[str]:
        return () if self._num_steps >= self._limit else self.env.acting_agents()

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._num_steps = 0
        return self.env.reset(seed=seed)

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        result = self.env.step(actions)
        self._num_steps += 1
        if self._num_steps < self._limit:
            return result
        return result._replace(truncated={**result.truncated, **dict.fromkeys(self.env.agents, True)})

    def get_own_state(self) -> dict[str, Array]:
        return {"num_steps": np.array(self._num_steps)}

    def set_own_state(self, state: Mapping[str, Array]) -> None:
        self._num_steps = int(state["num_steps"])
