"""Cuts a rollout into trajectories: what sinks and servers take.

Each lane is cut where its episodes end, and rows on which it did not act are folded away:

- a reward on such a row goes to the lane's last valid row before it in the block, even one whose episode had ended (a dead
  agent's share of what its team earns later); with no such row it has no action to belong to and is dropped;
- an episode's end on such a row ends the fragment at its last valid row; a fragment without valid rows yields nothing;
- a failed row is void: its reward does not count, and the fragment before it is `failed` and `truncated`.

Trajectories own their memory, so they outlive the rollout's reused buffers. Their ids depend only on world, agent, episode
and first step: cutting the same block again gives the same ids, so a retry never counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid5

import numpy as np

from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.trees import Array, Tree, map_tree
from relayrl.errors import ConfigError


def trajectory_id(env_id: UUID, agent_id: str, episode: int, first_step: int) -> UUID:
    """The id of the fragment of an agent's episode that begins at `first_step`."""
    return uuid5(env_id, f"{agent_id}/{episode}/{first_step}")


def split_rollout(rollout: Rollout) -> Iterator[Trajectory]:
    """The trajectories of a rollout, lane by lane and in the order of time within each.

    Their first step is that of the row where the fragment begins, valid or not: 0 from an episode's beginning on.
    """
    T, L = rollout.num_steps, rollout.num_lanes
    ended = rollout.ended
    successors = rollout.successors.step * L + rollout.successors.lane
    if not np.array_equal(successors, np.flatnonzero(rows_with_successor(ended))):
        raise ConfigError("a rollout's successors must be the rows where a lane ended and the whole last row, in order")
    reward = credited_rewards(rollout)
    for lane in range(L):
        episode, first_step, begin = int(rollout.first_episode[lane]), int(rollout.first_step[lane]), 0
        for end in (*np.flatnonzero(ended[:-1, lane]).tolist(), T - 1):
            rows = begin + np.flatnonzero(rollout.valid[begin : end + 1, lane])
            if len(rows):
                final = int(np.searchsorted(successors, end * L + lane))
                yield _fragment(rollout, reward, lane, rows, end, final, episode, first_step)
            episode, first_step, begin = episode + 1, 0, end + 1


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


def _fragment(
    rollout: Rollout, reward: Array, lane: int, rows: Array, end: int, final: int, episode: int, first_step: int
) -> Trajectory:
    header = rollout.header
    env, agent = divmod(lane, len(header.agent_ids))
    env_id, agent_id = header.env_ids[env], header.agent_ids[agent]

    def taken(column: Tree | None, where: int = lane) -> Any:
        return None if column is None else map_tree(lambda leaf: leaf[rows, where], column)

    def last(successors: Tree | None) -> Any:
        return None if successors is None else map_tree(lambda leaf: np.array(leaf[final]), successors)

    return Trajectory(
        trajectory_id=trajectory_id(env_id, agent_id, episode, first_step),
        env_id=env_id,
        agent_id=agent_id,
        group=header.group,
        observation_space=header.observation_space,
        action_space=header.action_space,
        episode=episode,
        first_step=first_step,
        obs=taken(rollout.obs),
        action=taken(rollout.action),
        reward=reward[rows, lane],
        policy_version=rollout.policy_version[rows, lane],
        terminated=bool(rollout.terminated[end, lane]),
        truncated=bool(rollout.truncated[end, lane]),
        failed=bool(rollout.failed[end, lane]),
        final_obs=last(rollout.successors.obs),
        action_mask=taken(rollout.action_mask),
        logp=taken(rollout.logp),
        value=taken(rollout.value),
        memory=taken(rollout.memory),
        state=taken(rollout.state, env),
        final_state=last(rollout.successors.state),
    )
