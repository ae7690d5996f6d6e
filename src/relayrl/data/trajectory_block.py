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
        end = int(self.headers.num_steps[: i + 1].sum())
        return self._trajectory(i, end - int(self.headers.num_steps[i]), end)

    def __iter__(self) -> Iterator[Trajectory]:
        begin = 0
        for i, end in enumerate(self.headers.ends.tolist()):
            yield self._trajectory(i, begin, end)
            begin = end

    def _trajectory(self, i: int, begin: int, end: int) -> Trajectory:
        headers, rows = self.headers, slice(begin, end)

        def taken(column: Tree | None) -> Any:
            return None if column is None else index(column, rows)

        return Trajectory(
            trajectory_id=UUID(bytes=headers.trajectory_ids[i]),
            env_id=UUID(bytes=headers.env_ids[i]),
            agent_id=headers.agent_ids[i],
            group=self.group,
            observation_space=self.observation_space,
            action_space=self.action_space,
            episode=int(headers.episode[i]),
            first_step=int(headers.first_step[i]),
            obs=taken(self.obs),
            action=taken(self.action),
            reward=self.reward[rows],
            policy_version=self.policy_version[rows],
            terminated=bool(headers.terminated[i]),
            truncated=bool(headers.truncated[i]),
            failed=bool(headers.failed[i]),
            final_obs=index(self.final_obs, (i, ...)),
            action_mask=taken(self.action_mask),
            logp=taken(self.logp),
            value=taken(self.value),
            memory=taken(self.memory),
            state=taken(self.state),
            final_state=None if self.final_state is None else index(self.final_state, (i, ...)),
        )
