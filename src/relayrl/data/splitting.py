"""Cuts a rollout into trajectories: what sinks and servers take.

Each lane is cut where its episodes end, and rows on which it did not act are folded away:

- a reward on such a row goes to the lane's last valid row before it in the block, even one whose episode had ended (a dead
  agent's share of what its team earns later); with no such row it has no action to belong to and is dropped;
- an episode's end on such a row ends the fragment at its last valid row; a fragment without valid rows yields nothing;
- a failed row is void: its reward does not count, and the fragment before it is `failed` and `truncated`.

Trajectories share one copy of the columns, so they outlive the rollout's reused buffers. Their ids depend only on
environment, agent, episode and first step: cutting the same block again gives the same ids, so a retry never counts twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.arrow.schema import Kind, Layout
from relayrl.data.columns import Rollout
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, tree_leaves
from relayrl.errors import ConfigError


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
    layout = layout_book().layout(Kind.TRAJECTORY, rollout)
    return TrajectoryBlock(
        layout,
        headers if len(kept) == len(headers) else headers.taken(kept),
        tuple(_lane_by_lane(leaf, rows) for leaf in _stored(layout, rollout)),
        tuple(leaf[finals] for leaf in _followed(layout, rollout)),
    )


def _stored(layout: Layout, rollout: Rollout) -> Iterator[Array]:
    """The columns `[T, L, …]` in the order of `layout.stored`."""
    yield from (credited_rewards(rollout), rollout.policy_version)
    yield from tree_leaves(layout.observation_space, rollout.obs, "obs")
    yield from tree_leaves(layout.action_space, rollout.action, "action")
    yield from (column for column in (rollout.action_mask, rollout.logp, rollout.value) if column is not None)
    if layout.memory_space is not None and rollout.memory is not None:
        yield from tree_leaves(layout.memory_space, rollout.memory, "memory")
    if layout.state_space is not None and rollout.state is not None:
        num_agents = len(rollout.header.agent_ids)
        for leaf in tree_leaves(layout.state_space, rollout.state, "state"):
            yield np.repeat(leaf, num_agents, axis=1)


def _followed(layout: Layout, rollout: Rollout) -> Iterator[Array]:
    """What followed rows, in the order of `layout.successor`."""
    followed = rollout.successors
    yield from tree_leaves(layout.observation_space, followed.obs, "successors.obs")
    if (layout.state_space is None) != (followed.state is None):
        raise ConfigError("states must be given for the steps and for what followed them, or for neither")
    if layout.state_space is not None and followed.state is not None:
        yield from tree_leaves(layout.state_space, followed.state, "successors.state")
    if followed.action_mask is not None:
        yield followed.action_mask


def _headers(rollout: Rollout, begins: Array, ends: Array, num_steps: Array) -> TrajectoryHeaders:
    """Of all fragments `begins[k] … ends[k]`, those without valid rows too."""
    T, header = rollout.num_steps, rollout.header
    lane, row = np.divmod(begins, T) if T else (begins, begins)
    first_of_lane = np.flatnonzero(row == 0)
    episode = rollout.first_episode[lane] + np.arange(len(begins)) - first_of_lane[lane]
    first_step = np.where(row == 0, rollout.first_step[lane], 0)
    env, agent = np.divmod(lane, len(header.agent_ids))
    envs = [env_id.bytes for env_id in header.env_ids]
    env_ids = [envs[i] for i in env.tolist()]
    agent_ids = [header.agent_ids[i] for i in agent.tolist()]
    flags = (np.ascontiguousarray(column.T).reshape(-1)[ends] for column in _flags(rollout))
    ids = _trajectory_ids(env_ids, agent_ids, episode, first_step)
    return TrajectoryHeaders(ids, env_ids, agent_ids, episode, first_step, num_steps, *flags)


def _flags(rollout: Rollout) -> tuple[Array, Array, Array]:
    return rollout.terminated, rollout.truncated, rollout.failed


def _trajectory_ids(env_ids: list[bytes], agent_ids: list[str], episodes: Array, first_steps: Array) -> list[bytes]:
    """As `trajectory_id` for each, in bytes."""
    names = zip(env_ids, agent_ids, episodes.tolist(), first_steps.tolist(), strict=True)
    digests = [_sha1(env + f"{agent}/{episode}/{step}".encode()) for env, agent, episode, step in names]
    ids = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 20)[:, :16].copy()
    ids[:, 6] = ids[:, 6] & 0x0F | 0x50  # the version and variant of UUIDs from SHA-1
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    found: list[bytes] = ids.view("V16").reshape(-1).tolist()
    return found


def _sha1(message: bytes) -> bytes:
    return hashlib.sha1(message, usedforsecurity=False).digest()


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
