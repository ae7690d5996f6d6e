"""Many trajectories as one block of columns: what a rollout is cut into, and what sinks take without touching single steps.

The rows of `K` trajectories of one group stand one after the other in columns `[R, …]`; what belongs to a trajectory as a whole
stands in `headers` and in `final_obs` `[K, …]`. A block is also the sequence of its trajectories, made when they are asked for;
their arrays are views of the block's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array, Space, Tree, index


@dataclass(frozen=True, slots=True)
class TrajectoryHeaders:
    """Who, when and how each of `K` trajectories ended. Ids are the 16 bytes of UUIDs."""

    trajectory_ids: list[bytes]
    env_ids: list[bytes]
    agent_ids: list[str]
    episode: Array
    first_step: Array
    num_steps: Array
    terminated: Array
    truncated: Array
    failed: Array

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    @property
    def ends(self) -> Array:
        """[K] the row behind each trajectory's last."""
        return np.cumsum(self.num_steps)

    def taken(self, which: Array) -> TrajectoryHeaders:
        """Those of the trajectories with numbers `which`."""
        numbers = which.tolist()
        return TrajectoryHeaders(
            [self.trajectory_ids[i] for i in numbers],
            [self.env_ids[i] for i in numbers],
            [self.agent_ids[i] for i in numbers],
            *(column[which] for column in self._columns()),
        )

    def _columns(self) -> tuple[Array, ...]:
        numbers = (self.episode, self.first_step, self.num_steps)
        return (*numbers, self.terminated, self.truncated, self.failed)

    @staticmethod
    def joined(parts: Sequence[TrajectoryHeaders]) -> TrajectoryHeaders:
        """One after the other."""
        columns = (np.concatenate(column) for column in zip(*(part._columns() for part in parts), strict=True))
        return TrajectoryHeaders(
            [each for part in parts for each in part.trajectory_ids],
            [each for part in parts for each in part.env_ids],
            [each for part in parts for each in part.agent_ids],
            *columns,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryBlock(Sequence[Trajectory]):
    """`K` trajectories; columns are those of `Trajectory`, with all rows."""

    group: str
    observation_space: Space
    action_space: Space
    headers: TrajectoryHeaders
    obs: Tree
    action: Tree
    reward: Array
    policy_version: Array
    final_obs: Tree
    action_mask: Array | None = None
    logp: Array | None = None
    value: Array | None = None
    memory: Tree | None = None
    state: Tree | None = None
    final_state: Tree | None = None
    final_mask: Array | None = None  # [K, A]

    def __len__(self) -> int:
        return len(self.headers)

    @overload
    def __getitem__(self, which: int) -> Trajectory: ...
    @overload
    def __getitem__(self, which: slice) -> list[Trajectory]: ...
    def __getitem__(self, which: int | slice) -> Trajectory | list[Trajectory]:
        if isinstance(which, slice):
            return [self[i] for i in range(len(self))[which]]
        i = range(len(self))[which]
        return next(self._between(i, i + 1))

    def __iter__(self) -> Iterator[Trajectory]:
        return self._between(0, len(self))

    def _between(self, first: int, stop: int) -> Iterator[Trajectory]:
        headers = self.headers
        begin = int(headers.num_steps[:first].sum())
        names = (headers.trajectory_ids, headers.env_ids, headers.agent_ids)
        numbers = (headers.episode, headers.first_step, headers.num_steps)
        flags = (headers.terminated, headers.truncated, headers.failed)
        columns = [*(each[first:stop] for each in names), *(each[first:stop].tolist() for each in (*numbers, *flags))]
        for i, header in enumerate(zip(*columns, strict=True), first):
            trajectory_id, env_id, agent_id, episode, first_step, num_steps, terminated, truncated, failed = header
            rows = slice(begin, begin := begin + num_steps)
            yield Trajectory(
                trajectory_id=UUID(bytes=trajectory_id),
                env_id=UUID(bytes=env_id),
                agent_id=agent_id,
                group=self.group,
                observation_space=self.observation_space,
                action_space=self.action_space,
                episode=episode,
                first_step=first_step,
                obs=_taken(self.obs, rows),
                action=_taken(self.action, rows),
                reward=self.reward[rows],
                policy_version=self.policy_version[rows],
                terminated=terminated,
                truncated=truncated,
                failed=failed,
                final_obs=_taken(self.final_obs, (i, ...)),
                action_mask=_taken(self.action_mask, rows),
                logp=_taken(self.logp, rows),
                value=_taken(self.value, rows),
                memory=_taken(self.memory, rows),
                state=_taken(self.state, rows),
                final_state=_taken(self.final_state, (i, ...)),
                final_mask=None if self.final_mask is None else self.final_mask[i],
            )


def _taken(column: Tree | None, where: Any) -> Any:
    """As `index`, without its cost for a plain array or none."""
    if column is None:
        return None
    return index(column, where) if isinstance(column, dict | tuple) else column[where]
