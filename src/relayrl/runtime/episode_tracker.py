"""Returns and lengths of the episodes that a collector plays, for everybody and for each group of agents.

Not its job: averaging and writing them (`training.statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import VectorEnvironment, VectorStep


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
        self._sums = {name: np.zeros((env.num_envs, group.num_agents)) for name, group in env.groups.items()}
        self._num_steps = 0
        self._began_at = np.zeros(env.num_envs, np.int64)
        self._ended = self._none()

    def _none(self) -> EndedEpisodes:
        return EndedEpisodes(group_returns={name: [] for name in self._num_agents})

    def add(self, step: VectorStep) -> None:
        """Count one step of all environments."""
        for name, group in step.groups.items():
            self._sums[name] += group.reward
        self._num_steps += 1
        if np.count_nonzero(step.episode_over):
            self._end(step)

    def _end(self, step: VectorStep) -> None:
        over = step.episode_over
        whole = over if step.failed is None else over & ~step.failed
        ended = {name: sums[whole].sum(1) for name, sums in self._sums.items()}
        total = np.sum(list(ended.values()), axis=0) / sum(self._num_agents.values())
        self._ended.returns += total.tolist()
        self._ended.lengths += (self._num_steps - self._began_at[whole]).tolist()
        for name, sums in self._sums.items():
            self._ended.group_returns[name] += (ended[name] / self._num_agents[name]).tolist()
            sums[over] = 0.0
        # An environment that nobody acts in after an end spends the next step on its reset.
        acts = np.any([group.active.any(1) for group in step.groups.values()], axis=0)
        self._began_at[over] = self._num_steps + ~acts[over]

    def lengths(self) -> Array:
        """[B] steps that the running episodes have taken."""
        return self._num_steps - self._began_at

    def take(self) -> EndedEpisodes:
        """Episodes that ended since the last call."""
        taken, self._ended = self._ended, self._none()
        return taken

    def get_state(self) -> dict[str, Array]:
        """The running episodes; those that ended must have been taken."""
        return {"length": self.lengths(), **{f"sum/{name}": sums.copy() for name, sums in self._sums.items()}}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `get_state`."""
        self._began_at[:] = self._num_steps - state["length"]
        for name, sums in self._sums.items():
            sums[:] = state[f"sum/{name}"]
