"""Gymnasium environments whose spaces are tuples of agents, as those of lbforaging and rware: several agents in one `Env`.

`step` takes a tuple of actions and gives a tuple of observations and a list of rewards, one entry per agent. Such an
environment looks like one agent with nested spaces; what tells it apart is that it says how many agents it has (`n_agents`,
`num_agents` or `players`), as many as both tuples have entries. Agents are called `agent_0`, `agent_1`, …; those with equal
spaces share a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentReset, MultiAgentStep
from relayrl.errors import EnvError

_COUNTS = ("n_agents", "num_agents", "players")


def has_tuple_agents(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment's tuples are of its agents."""
    seen, done = env.observation_space, env.action_space
    if not (isinstance(seen, spaces.Tuple) and isinstance(done, spaces.Tuple) and len(seen.spaces) == len(done.spaces)):
        return False
    declared = (getattr(env.unwrapped, name, None) for name in _COUNTS)
    counts = [
        count if isinstance(count, int) else len(count) for count in declared if isinstance(count, int | list | tuple)
    ]
    return len(done.spaces) in counts


class TupleAgents(MultiAgentEnvironment):
    """The agents of one such environment: all act in each step, and the episode ends for all of them at once."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        seen, done = env.observation_space, env.action_space
        assert isinstance(seen, spaces.Tuple)
        assert isinstance(done, spaces.Tuple)
        self._env, self.render_mode, self.metadata = env, env.render_mode, env.metadata
        self.possible_agents = tuple(f"agent_{i}" for i in range(len(done.spaces)))
        self.observation_spaces = dict(zip(self.possible_agents, seen.spaces, strict=True))
        self.action_spaces = dict(zip(self.possible_agents, done.spaces, strict=True))
        self._alive: Sequence[str] = ()
        self._observations: dict[str, Any] = {}

    @property
    def unwrapped(self) -> Any:
        """The environment itself."""
        return self._env.unwrapped

    @property
    def agents(self) -> Sequence[str]:
        return self._alive

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        observations, info = self._env.reset(seed=seed)
        self._alive, self._observations = self.possible_agents, self._by_agent("observations", observations)
        return MultiAgentReset(self._observations, dict.fromkeys(self._alive, info))

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        taken = tuple(_plain(actions[agent]) for agent in self.possible_agents)
        observations, rewards, terminated, truncated, info = self._env.step(taken)
        self._observations = self._by_agent("observations", observations)
        ended, cut = (self._flags(flags) for flags in (terminated, truncated))
        self._alive = tuple(agent for agent in self._alive if not (ended[agent] or cut[agent]))
        earned = {agent: float(reward) for agent, reward in self._by_agent("rewards", rewards).items()}
        return MultiAgentStep(self._observations, earned, ended, cut, dict.fromkeys(self.possible_agents, info))

    def build_observation(self) -> Mapping[str, Any]:
        return self._observations

    def close(self) -> None:
        self._env.close()

    def render(self) -> Any:
        """The picture of the environment."""
        return self._env.render()

    def _by_agent(self, what: str, values: Any) -> dict[str, Any]:
        if not isinstance(values, list | tuple | np.ndarray) or len(values) != len(self.possible_agents):
            raise EnvError(
                f"{what} are {values!r:.80}; there are {len(self.possible_agents)} agents, one entry for each"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _flags(self, flags: Any) -> dict[str, bool]:
        """One flag for all agents, or one for each."""
        if np.ndim(flags) == 0:
            return dict.fromkeys(self.possible_agents, bool(flags))
        return {agent: bool(flag) for agent, flag in self._by_agent("flags", flags).items()}


def _plain(action: Any) -> Any:
    return int(action) if isinstance(action, np.integer) else action
