"""The data model: `Trajectory` and `Rollout`, columns of steps, and nothing per step.

A lane is one agent in one environment. A trajectory is one lane's contiguous steps, columns `[T, …]`. A rollout is `T`
steps of `L` lanes of one policy group, columns `[T, L, …]`; lanes are environment-major, so that `joint()` gives
`[T, B, N, …]` as a view. One row is one step:

    obs[t]  →  action[t] (with logp[t], value[t], under action_mask[t])  →  reward[t], terminated[t], truncated[t]

- `valid[t]` is False where the lane did not act: the agent was dead, absent, or it was not its turn. What arrives on such
  rows, rewards and the episode's end, belongs to the lane's last valid row before them; what arrives after its end, or
  before its first action of an episode, belongs to no action.
- `terminated` cuts the bootstrap, `truncated` does not: its value comes from the *successor* observation.
- `failed[t]`: the environment crashed on this row and was restarted. Such a row is never valid, and is truncated.
- `successors` holds, sparsely, the observation that followed a row where `obs[t + 1]` is not it: where a lane's episode
  ended (the final observation, before auto-reset) and, on the last row, for lanes that go on. Where actions are masked, it also
  holds the mask that came with that observation, all True where nobody knows it.
- `env_episode` and `env_step`, where an environment has several agents, are its clock: which of its episodes a row belongs to,
  and the row's step in it. A lane's own numbers say what of that it has handed over already: `first_episode` is the
  environment's episode that the lane's next action belongs to (the next one, where the lane has ended in the running one),
  `first_step` the step of the block's first row, or 0 where the lane has not acted in the episode yet.
- `state`, where it is recorded, is the global state of the lane's environment: one column `[T, B, …]` for all lanes of a
  rollout, whose successors hold the state that followed beside the observation.

This file only holds, slices, copies and joins; filling is `rollout_builder`, bytes are `codec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

import numpy as np

from relayrl.data.row_rules import number_rows
from relayrl.data.trees import Array, Space, Tree, index, map_tree

if TYPE_CHECKING:
    from relayrl.data.trajectory_block import TrajectoryBlock

COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid", "failed", "policy_version")
OPTIONAL_COLUMNS = ("action_mask", "logp", "value", "memory", "state", "env_episode", "env_step")


@dataclass(frozen=True, slots=True)
class LaneHeader:
    """What all lanes of a block have in common, and who they are: `L = len(env_ids) * len(agent_ids)`."""

    group: str
    env_ids: tuple[UUID, ...]
    agent_ids: tuple[str, ...]
    observation_space: Space
    action_space: Space

    @property
    def num_lanes(self) -> int:
        return len(self.env_ids) * len(self.agent_ids)


@dataclass(frozen=True, slots=True)
class Successors:
    """Observations that followed rows `(step[k], lane[k])`, `obs` with leading axis `K`; sorted by step, then lane."""

    step: Array
    lane: Array
    obs: Tree
    state: Tree | None = None  # [K, …] the global state then, where states are recorded
    action_mask: Array | None = None  # [K, A] what was allowed then, where actions are masked

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class Rollout:
    """`T` steps of `L` lanes of one policy group. See the module's docstring for what each column means."""

    header: LaneHeader
    obs: Tree
    action: Tree
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    failed: Array
    policy_version: Array
    first_episode: Array  # [L] episode number of each lane's first row
    first_step: Array  # [L] the step within that episode from which on each lane's rows are new
    successors: Successors
    action_mask: Array | None = None
    logp: Array | None = None
    value: Array | None = None
    memory: Tree | None = None
    state: Tree | None = None  # [T, B, …] global states
    env_episode: Array | None = (
        None  # [T, B] int64 the environment's clock; None: each lane is an environment of its own
    )
    env_step: Array | None = None  # [T, B] int64
    waits: Array | None = (
        None  # [L] lanes that do not act on what followed the last row; None: all act, or nobody knows
    )
    next_episode: Array | None = None  # [B] the environment's episode after the last row; None: nobody knows

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.reward.shape[0])

    @property
    def num_lanes(self) -> int:
        """L."""
        return int(self.reward.shape[1])

    @property
    def ended(self) -> Array:
        """[T, L] rows on which the lane's episode ended, for whatever reason."""
        return np.logical_or(self.terminated, self.truncated)

    def episode(self) -> Array:
        """[T, L] int64 episode number of each row."""
        if self.env_episode is not None:
            return np.repeat(self.env_episode, len(self.header.agent_ids), axis=1)
        return number_rows(self.ended, self.first_episode, self.first_step)[0]

    def step(self) -> Array:
        """[T, L] int64 index of each row within its episode."""
        if self.env_step is not None:
            return np.repeat(self.env_step, len(self.header.agent_ids), axis=1)
        return number_rows(self.ended, self.first_episode, self.first_step)[1]

    def joint(self, column: Tree) -> Tree:
        """A `[T, L, …]` column as its `[T, B, N, …]` view: agents of one environment side by side."""
        shape = (len(self.header.env_ids), len(self.header.agent_ids))
        return map_tree(lambda leaf: leaf.reshape(leaf.shape[0], *shape, *leaf.shape[2:]), column)  # type: ignore[no-any-return]

    def trajectories(self) -> TrajectoryBlock:
        """Every lane cut at its episode ends, invalid rows folded away. Of consecutive blocks, `open_rows` also keeps what
        arrives for a lane before its first action of a block."""
        from relayrl.data.splitting import split_rollout

        return split_rollout(self)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one lane did in the steps `first_step … end_step - 1` of its environment's episode: a row `[T, …]` for each action.

    `step[t]` is the environment's step of row `t`. Steps without a row are those on which the lane did not act; rewards that
    arrived there are part of the row before, which for steps before the first row is the last of the trajectory before. The
    flags are those of step `end_step - 1`, and `final_obs` is what followed it.
    The trajectories of a lane in one episode follow each other without a gap, the first from step 0 on.

    Without `end_step`, nobody knows the environment's steps: rows are counted from `first_step` on.
    """

    trajectory_id: UUID
    env_id: UUID
    agent_id: str
    group: str
    observation_space: Space
    action_space: Space
    episode: int
    first_step: int
    obs: Tree
    action: Tree
    reward: Array
    policy_version: Array
    terminated: bool
    truncated: bool
    failed: bool
    final_obs: Tree  # the observation after the last step, [...] without a time axis
    action_mask: Array | None = None
    logp: Array | None = None
    value: Array | None = None
    memory: Tree | None = None
    state: Tree | None = None  # [T, …] global states
    final_state: Tree | None = None  # the one after the last step; given exactly where `state` is
    final_mask: Array | None = (
        None  # [A] the action mask after the last step, where it is known; only beside `action_mask`
    )
    step: Array | None = None  # [T] int64, strictly increasing; None: first_step, first_step + 1, …
    end_step: int | None = None  # the step after the last one of the environment that is covered here

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def steps(self) -> Array:
        """[T] the environment's step of each row."""
        return self.first_step + np.arange(len(self)) if self.step is None else self.step

    @property
    def num_env_steps(self) -> int:
        """Steps of the environment from `first_step` to the end; a failure takes one more than there are rows."""
        if self.end_step is not None:
            return self.end_step - self.first_step
        last = self.first_step + len(self) if self.step is None else int(self.step[-1]) + 1
        return last + self.failed - self.first_step

    @property
    def knows_steps(self) -> bool:
        """Whether rows are numbered by the environment, so that agents can be put beside each other."""
        return self.end_step is not None or self.step is not None

    @property
    def is_whole(self) -> bool:
        """From an episode's first step to its regular end."""
        return self.first_step == 0 and (self.terminated or self.truncated) and not self.failed

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the rewards held here."""
        return float(np.sum(self.reward, dtype=np.float64))


def trajectory_id(env_id: UUID, agent_id: str, episode: int, first_step: int) -> UUID:
    """The id of the fragment of an agent's episode that begins at `first_step`: the same whenever the same steps are cut."""
    return uuid5(env_id, f"{agent_id}/{episode}/{first_step}")


def copied_rollout(rollout: Rollout) -> Rollout:
    """The same rollout in memory of its own: a builder overwrites its blocks."""
    columns = {name: map_tree(np.array, getattr(rollout, name)) for name in _columns_in(rollout)}
    own = Successors(**map_tree(np.array, _columns_of(rollout.successors)))
    return replace(rollout, **columns, successors=own)


def joined_rollouts(blocks: Sequence[Rollout]) -> Rollout:
    """Consecutive blocks of the same lanes as one block."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    columns: dict[str, Any] = {
        name: map_tree(lambda *parts: np.concatenate(parts), *(getattr(block, name) for block in blocks))
        for name in _columns_in(first)
    }
    parts = []
    offset = 0
    for block in blocks:
        successors = block.successors
        # Inside the joined block, only rows that ended need what followed them; the next row holds it otherwise.
        kept = np.ones(len(successors), bool)
        if block is not blocks[-1]:
            kept = block.ended[successors.step, successors.lane]
        part = index(_columns_of(successors), kept)
        parts.append({**part, "step": part["step"] + offset})
        offset += block.num_steps
    successors = Successors(**map_tree(lambda *same: np.concatenate(same), *parts))
    return replace(
        first, **columns, successors=successors, waits=blocks[-1].waits, next_episode=blocks[-1].next_episode
    )


def _columns_of(successors: Successors) -> dict[str, Any]:
    columns = {field.name: getattr(successors, field.name) for field in fields(successors)}
    return {name: column for name, column in columns.items() if column is not None}


def _columns_in(rollout: Rollout) -> list[str]:
    return [*COLUMNS, *(name for name in OPTIONAL_COLUMNS if getattr(rollout, name) is not None)]
