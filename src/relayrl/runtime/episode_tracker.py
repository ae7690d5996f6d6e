"""Returns and lengths of the episodes that a collector plays, for everybody and for each group of agents.

Not its job: averaging and writing them (`training.statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.contract import VectorEnvironment, VectorStep


@dataclass(slots=True)
class EndedEpisodes:
    """Episodes that ended, in order: returns as means over agents, lengths in steps, and each group's own returns."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    group_returns: dict[str, list[float]] = field(default_factory=dict)


class EpisodeTracker:
    """Adds up rewards step by step; episodes that a failure cut are left out."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._num_agents = {name: group.num_agents for name, group in env.groups.items()}
        self._sums = {name: np.zeros(env.num_envs) for name in env.groups}
        self._length = np.zeros(env.num_envs, np.int64)
        self._ended = self._none()

    def _none(self) -> EndedEpisodes:
        return EndedEpisodes(group_returns={name: [] for name in self._num_agents})

    def add(self, step: VectorStep) -> None:
        """Count one step of all worlds."""
        for name, group in step.groups.items():
            self._sums[name] += group.reward.sum(1)
        self._length += 1
        if not step.episode_over.any():
            return
        whole = step.episode_over if step.failed is None else step.episode_over & ~step.failed
        total = np.sum(list(self._sums.values()), axis=0) / sum(self._num_agents.values())
        self._ended.returns += total[whole].tolist()
        self._ended.lengths += self._length[whole].tolist()
        for name, sums in self._sums.items():
            self._ended.group_returns[name] += (sums[whole] / self._num_agents[name]).tolist()
            sums[step.episode_over] = 0.0
        self._length[step.episode_over] = 0

    def take(self) -> EndedEpisodes:
        """Episodes that ended since the last call."""
        taken, self._ended = self._ended, self._none()
        return taken

    def get_state(self) -> dict[str, Array]:
        """The running episodes; those that ended must have been taken."""
        return {"length": self._length.copy(), **{f"sum/{name}": sums.copy() for name, sums in self._sums.items()}}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `get_state`."""
        self._length[:] = state["length"]
        for name, sums in self._sums.items():
            sums[:] = state[f"sum/{name}"]
