"""Cuts a rollout into trajectories: what sinks and servers take.

Each lane is cut where its episodes end, and rows on which it did not act are folded away:

- a reward on such a row goes to the lane's last valid row before it in the block, even one whose episode had ended (a dead
  agent's share of what its team earns later); with no such row it has no action to belong to and is dropped;
- an episode's end on such a row ends the fragment at its last valid row; a fragment without valid rows yields nothing;
- a failed row is void: its reward does not count, and the fragment before it is `failed` and `truncated`.

Trajectories share one copy of the columns, so they outlive the rollout's reused buffers. Their ids depend only on world, agent,
episode and first step: cutting the same block again gives the same ids, so a retry never counts twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import numpy as np

from relayrl.compiled.loader import kernels
from relayrl.data.columns import Rollout
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, Tree, index, map_tree
from relayrl.errors import ConfigError


def trajectory_id(env_id: UUID, agent_id: str, episode: int, first_step: int) -> UUID:
    """The id of the fragment of an agent's episode that begins at `first_step`."""
    return uuid5(env_id, f"{agent_id}/{episode}/{first_step}")


def on_branch(block: TrajectoryBlock, branch: str) -> TrajectoryBlock:
    """The block with the ids that its trajectories have on a branch of their run; `""` is the one it began with."""
    if not branch:
        return block
    headers = block.headers
    ids = _trajectory_ids(headers.trajectory_ids, [branch] * len(headers), headers.episode, headers.first_step)
    return replace(block, headers=replace(headers, trajectory_ids=ids))


def split_rollout(rollout: Rollout) -> TrajectoryBlock:
    """The trajectories of a rollout, lane by lane and in the order of time within each.

    Their first step is that of the row where the fragment begins, valid or not: 0 from an episode's beginning on.
    """
    T, L = rollout.num_steps, rollout.num_lanes
    ended = rollout.ended
    successors = rollout.successors.step * L + rollout.successors.lane
    if not np.array_equal(successors, np.flatnonzero(rows_with_successor(ended))):
        raise ConfigError("a rollout's successors must be the rows where a lane ended and the whole last row, in order")
    # From here on rows are numbered lane by lane: row t of lane l is l * T + t.
    valid = np.ascontiguousarray(rollout.valid.T).reshape(-1)
    ends = np.flatnonzero(rows_with_successor(ended).T)
    begins = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    num_steps = np.add.reduceat(valid, begins, dtype=np.int64) if len(ends) else ends
    headers = _headers(rollout, begins, ends, num_steps)
    kept = np.flatnonzero(num_steps)
    rows = None if valid.all() else np.flatnonzero(valid)
    ends = ends[kept]
    finals = np.searchsorted(successors, ends % T * L + ends // T) if len(ends) else ends

    def taken(column: Tree | None) -> Any:
        return None if column is None else map_tree(lambda leaf: _lane_by_lane(leaf, rows), column)

    def last(followed: Tree | None) -> Any:
        return None if followed is None else index(followed, finals)

    num_agents = len(rollout.header.agent_ids)
    state = rollout.state
    states = None if state is None else map_tree(lambda leaf: np.repeat(leaf, num_agents, axis=1), state)
    return TrajectoryBlock(
        group=rollout.header.group,
        observation_space=rollout.header.observation_space,
        action_space=rollout.header.action_space,
        headers=headers if len(kept) == len(headers) else headers.taken(kept),
        obs=taken(rollout.obs),
        action=taken(rollout.action),
        reward=taken(credited_rewards(rollout)),
        policy_version=taken(rollout.policy_version),
        final_obs=last(rollout.successors.obs),
        action_mask=taken(rollout.action_mask),
        logp=taken(rollout.logp),
        value=taken(rollout.value),
        memory=taken(rollout.memory),
        state=taken(states),
        final_state=last(rollout.successors.state),
        final_mask=last(rollout.successors.action_mask),
    )


def _headers(rollout: Rollout, begins: Array, ends: Array, num_steps: Array) -> TrajectoryHeaders:
    """Of all fragments `begins[k] … ends[k]`, those without valid rows too."""
    T, header = rollout.num_steps, rollout.header
    lane, row = np.divmod(begins, T) if T else (begins, begins)
    first_of_lane = np.flatnonzero(row == 0)
    episode = rollout.first_episode[lane] + np.arange(len(begins)) - first_of_lane[lane]
    first_step = np.where(row == 0, rollout.first_step[lane], 0)
    env, agent = np.divmod(lane, len(header.agent_ids))
    worlds = [env_id.bytes for env_id in header.env_ids]
    env_ids = [worlds[i] for i in env.tolist()]
    agent_ids = [header.agent_ids[i] for i in agent.tolist()]
    flags = (np.ascontiguousarray(column.T).reshape(-1)[ends] for column in _flags(rollout))
    ids = _trajectory_ids(env_ids, agent_ids, episode, first_step)
    return TrajectoryHeaders(ids, env_ids, agent_ids, episode, first_step, num_steps, *flags)


def _flags(rollout: Rollout) -> tuple[Array, Array, Array]:
    return rollout.terminated, rollout.truncated, rollout.failed


def _trajectory_ids(env_ids: list[bytes], agent_ids: list[str], episodes: Array, first_steps: Array) -> list[bytes]:
    """As `trajectory_id` for each, in bytes."""
    compiled = kernels()
    if compiled is not None:
        found: list[bytes] = compiled.trajectory_ids(env_ids, agent_ids, episodes, first_steps)
        return found
    names = zip(env_ids, agent_ids, episodes.tolist(), first_steps.tolist(), strict=True)
    return [trajectory_id(UUID(bytes=env), agent, episode, step).bytes for env, agent, episode, step in names]


def _lane_by_lane(leaf: Array, rows: Array | None) -> Array:
    """`[T, L, …]` as `[L * T, …]` in memory of its own, or only the given rows of that."""
    flat = leaf.swapaxes(0, 1)
    if rows is None:
        return np.array(flat, order="C").reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
    lane, row = np.divmod(rows, max(len(leaf), 1))
    return np.asarray(leaf[row, lane])


def credited_rewards(rollout: Rollout) -> Array:
    """[T, L] rewards, those of rows that are not valid added to the lane's last valid row before them.

    What arrives after a lane's end, or before its first action of an episode, belongs to no action and is left out.
    """
    reward, valid = rollout.reward, rollout.valid
    if valid.all():
        return reward
    rows = np.arange(len(reward))[:, None]
    last_valid = np.maximum.accumulate(np.where(valid, rows, -1), axis=0)
    last_end = np.full_like(last_valid, -1)
    last_end[1:] = np.maximum.accumulate(np.where(rollout.ended, rows, -1), axis=0)[:-1]
    stray_row, stray_lane = np.nonzero(~valid & ~rollout.failed & (last_valid > last_end))
    credited = reward.copy()
    # Sums of what an environment paid: NaN and infinity are passed on, not complained about here.
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(credited, (last_valid[stray_row, stray_lane], stray_lane), reward[stray_row, stray_lane])
    return credited
