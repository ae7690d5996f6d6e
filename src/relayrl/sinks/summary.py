"""What a source holds, in a few numbers per group: for `relayrl data inspect`.

An episode that is longer than a rollout is stored in several trajectories; they are joined before anything is said of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array


@dataclass(slots=True)
class _Episode:
    """What is known of one agent's episode, from the trajectories that came so far, in any order."""

    num_steps: int = 0
    num_env_steps: int = 0  # steps of the environment that are covered
    end: int = 0  # the step after the last one that is known
    total: float = 0.0
    newest_version: int = -(2**63)
    has_ended: bool = False

    def add(self, trajectory: Trajectory, newest: int) -> None:
        self.num_steps += len(trajectory)
        # A failed one is never whole, so that its void step need not count.
        self.num_env_steps += trajectory.num_env_steps
        self.end = max(self.end, trajectory.first_step + trajectory.num_env_steps)
        self.newest_version = max(self.newest_version, newest)
        self.has_ended |= (trajectory.terminated or trajectory.truncated) and not trajectory.failed
        with np.errstate(all="ignore"):
            self.total += trajectory.episode_return

    @property
    def is_whole(self) -> bool:
        """Whether every step from the first to the regular end is there."""
        return self.has_ended and self.num_env_steps == self.end


@dataclass(slots=True)
class GroupSummary:
    """The trajectories of one group."""

    observation_space: str
    action_space: str
    num_trajectories: int = 0
    num_steps: int = 0
    num_failed: int = 0
    agents: set[str] = field(default_factory=set)
    oldest_version: int = 2**63 - 1
    newest_version: int = -(2**63)
    versions: list[int] = field(default_factory=list)
    """The newest version in each whole episode; beside it in `returns` what it brought."""
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    _running: dict[tuple[UUID, str, int], _Episode] = field(default_factory=dict)

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory in."""
        self.num_trajectories += 1
        self.num_steps += len(trajectory)
        self.num_failed += trajectory.failed
        self.agents.add(trajectory.agent_id)
        newest = int(trajectory.policy_version.max())
        self.oldest_version = min(self.oldest_version, int(trajectory.policy_version.min()))
        self.newest_version = max(self.newest_version, newest)
        key = trajectory.env_id, trajectory.agent_id, trajectory.episode
        episode = self._running.setdefault(key, _Episode())
        episode.add(trajectory, newest)
        if episode.is_whole:
            del self._running[key]
            self.versions.append(episode.newest_version)
            self.returns.append(episode.total)
            self.lengths.append(episode.num_steps)

    def mean_return_by_version(self) -> tuple[Array, Array]:
        """The versions that finished whole episodes, and the mean return of each."""
        versions, which = np.unique(np.array(self.versions, np.int64), return_inverse=True)
        sums = np.bincount(which, weights=np.array(self.returns, np.float64), minlength=len(versions))
        return versions, sums / np.bincount(which, minlength=len(versions))

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what is not finite, or has no episode to come from, is None."""
        returns = np.array(self.returns, np.float64)
        figures = (returns.mean(), returns.std(), returns.min(), returns.max()) if len(returns) else (None,) * 4
        names = ("mean_return", "std_return", "min_return", "max_return")
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "num_trajectories": self.num_trajectories,
            "num_steps": self.num_steps,
            "num_whole_episodes": len(self.returns),
            "longest_episode": max(self.lengths, default=None),
            "num_failed": self.num_failed,
            "agents": sorted(self.agents),
            "policy_versions": [self.oldest_version, self.newest_version],
            **{name: _finite(figure) for name, figure in zip(names, figures, strict=True)},
        }


def summarise(trajectories: Iterable[Trajectory]) -> dict[str, GroupSummary]:
    """One pass; groups in order of appearance. A group recorded with other spaces later is another one, `name (2)`."""
    found: dict[str, GroupSummary] = {}
    names: dict[tuple[str, str, str], str] = {}
    for trajectory in trajectories:
        spaces = (str(trajectory.observation_space), str(trajectory.action_space))
        key = (trajectory.group, *spaces)
        if key not in names:
            same = sum(known[0] == trajectory.group for known in names)
            names[key] = f"{trajectory.group} ({same + 1})" if same else trajectory.group
            found[names[key]] = GroupSummary(*spaces)
        found[names[key]].add(trajectory)
    return found


def _finite(figure: Any) -> float | None:
    return None if figure is None or not np.isfinite(figure) else float(figure)
