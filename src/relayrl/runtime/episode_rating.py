"""What environments make of their episodes, where they have a `performance_return` of their own.

Rewards of running episodes are kept until their end, then the environment rates them. Where it has no rule of its own, nothing
is kept: returns are sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import VectorEnvironment, VectorStep


class EpisodeRating:
    """The rewards of the running episodes of an environment that rates them."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._env = env
        self._agents = [agent for group in env.groups.values() for agent in group.agent_ids]
        self._rewards: list[list[Array]] = [[] for _ in range(env.num_envs)]

    @classmethod
    def of(cls, env: VectorEnvironment) -> EpisodeRating | None:
        """None where returns are sums."""
        return cls(env) if env.rates_episodes else None

    def add(self, step: VectorStep) -> None:
        """Keep the rewards of one step."""
        rows = np.concatenate([np.asarray(step.counted(name)) for name in step.groups], axis=1)
        for own, row in zip(self._rewards, rows, strict=True):
            own.append(row)

    def take(self, b: int) -> float:
        """What environment `b` makes of its episode, which is over."""
        rewards = np.array(self._rewards[b], np.float64).reshape(-1, len(self._agents))
        self._rewards[b] = []
        return self._env.performance_return({agent: rewards[:, n].tolist() for n, agent in enumerate(self._agents)})

    def drop(self, b: int) -> None:
        """Forget an episode that does not count."""
        self._rewards[b] = []

    def get_state(self) -> dict[str, Array]:
        """The rewards of the running episodes."""
        width = len(self._agents)
        return {f"rewards/{b}": np.array(own).reshape(-1, width) for b, own in enumerate(self._rewards)}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `get_state`; states from before there were ratings have nothing."""
        self._rewards = [list(np.array(state.get(f"rewards/{b}", []))) for b in range(len(self._rewards))]
