"""Cuts a rollout into trajectories: what sinks and servers take.

Each lane is cut where its episodes end, and rows on which it did not act are folded away:

- a reward on such a row goes to the lane's last valid row before it in the block; after the lane's end it has no action to
  belong to and is dropped, and so it is with no such row, unless the block before is known (`open_rows`);
- an end on such a row stays where it was: the fragment covers the steps up to it, and has rows for the actions before it;
- a fragment without valid rows yields nothing;
- a failed row is void: its reward does not count, and the fragment before it is `failed` and `truncated`.

Rows are numbered by the environment's clock, so that `stacking` puts agents beside each other again as they were. A rollout
without a clock has it where there is one agent: its own count. Several agents without a clock are numbered each by itself, and
their trajectories do not claim to know the environment's steps.

Trajectories share one copy of the columns, so they outlive the rollout's reused buffers. Their ids depend only on
environment, agent, episode and first step: cutting the same block again gives the same ids, so a retry never counts twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

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
    ids = trajectory_ids(headers.trajectory_ids, [branch] * len(headers), headers.episode, headers.first_step)
    return replace(block, headers=replace(headers, trajectory_ids=ids))


def split_rollout(rollout: Rollout) -> TrajectoryBlock:
    """The trajectories of a rollout, lane by lane and in the order of time within each."""
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
    rows = None if valid.all() else np.flatnonzero(valid)
    kept = np.flatnonzero(num_steps)
    fragments = _Fragments(
        begins[kept], ends[kept], num_steps[kept], kept - np.searchsorted(begins, begins[kept] // T * T)
    )
    numbers = _numbers(rollout, fragments, rows)
    headers = _headers(rollout, fragments, numbers)
    ends = fragments.ends
    finals = np.searchsorted(successors, ends % T * L + ends // T) if len(ends) else ends
    layout = layout_book().layout(Kind.TRAJECTORY, rollout)
    return TrajectoryBlock(
        layout,
        headers,
        tuple(_lane_by_lane(leaf, rows) for leaf in _stored(layout, rollout)),
        tuple(leaf[finals] for leaf in followed(layout, rollout)),
        numbers.steps,
    )


class _Fragments(NamedTuple):
    """Those with actions: rows `begins[k] … ends[k]`, of which `num_steps[k]` are valid, and which of its lane's each is."""

    begins: Array
    ends: Array
    num_steps: Array
    ordinal: Array


class _Numbers(NamedTuple):
    """What the environment counts: of each fragment its episode and the steps that it covers, and the step of every valid row
    where those do not count on from the fragment's first step."""

    episode: Array
    first_step: Array
    end_step: Array | None
    steps: Array | None


def _numbers(rollout: Rollout, fragments: _Fragments, rows: Array | None) -> _Numbers:
    """`rows` are the valid ones; None: all."""
    T, num_agents = rollout.num_steps, len(rollout.header.agent_ids)
    begins, ends, num_steps, ordinal = fragments
    lane, row = np.divmod(begins, max(T, 1))
    first_step = np.where(row == 0, rollout.first_step[lane], 0)
    behind = np.cumsum(num_steps)
    first_valid, last_valid = (begins, ends) if rows is None else (rows[behind - num_steps], rows[behind - 1])
    if rollout.env_episode is None or rollout.env_step is None:
        episode, zeroth = rollout.first_episode[lane] + ordinal, first_step - begins
        if num_agents > 1:
            return _Numbers(episode, first_step, None, None)
    else:
        env = lane // num_agents
        episode = rollout.env_episode[first_valid % T, env]
        if (rollout.env_episode[ends % T, env] != episode).any():
            raise ConfigError("a lane has actions of two episodes of its environment and no end between them")
        zeroth = rollout.env_step[first_valid % T, env] - first_valid
        has_returned = (row > 0) & (rollout.env_episode[row - 1, env] == episode)
        first_step = np.where(has_returned, rollout.env_step[row, env], first_step)
    end_step = zeroth + ends + 1
    counts_on = (zeroth + first_valid == first_step) & (last_valid - first_valid == num_steps - 1)
    if counts_on.all():
        return _Numbers(episode, first_step, end_step, None)
    steps = np.repeat(zeroth, num_steps) + (
        np.arange(len(rollout.reward) * rollout.num_lanes) if rows is None else rows
    )
    return _Numbers(episode, first_step, end_step, steps)


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


def followed(layout: Layout, rollout: Rollout) -> Iterator[Array]:
    """What followed rows, in the order of `layout.followed`."""
    followed = rollout.successors
    yield from tree_leaves(layout.observation_space, followed.obs, "successors.obs")
    if (layout.state_space is None) != (followed.state is None):
        raise ConfigError("states must be given for the steps and for what followed them, or for neither")
    if layout.state_space is not None and followed.state is not None:
        yield from tree_leaves(layout.state_space, followed.state, "successors.state")
    if followed.action_mask is not None:
        yield followed.action_mask


def _headers(rollout: Rollout, fragments: _Fragments, numbers: _Numbers) -> TrajectoryHeaders:
    header = rollout.header
    env, agent = np.divmod(fragments.begins // max(rollout.num_steps, 1), len(header.agent_ids))
    envs = [env_id.bytes for env_id in header.env_ids]
    env_ids = [envs[i] for i in env.tolist()]
    agent_ids = [header.agent_ids[i] for i in agent.tolist()]
    flags = (np.ascontiguousarray(column.T).reshape(-1)[fragments.ends] for column in _flags(rollout))
    episode, first_step, end_step, _ = numbers
    ids = trajectory_ids(env_ids, agent_ids, episode, first_step)
    return TrajectoryHeaders(
        ids, env_ids, agent_ids, episode, first_step, fragments.num_steps, *flags, end_step=end_step
    )


def _flags(rollout: Rollout) -> tuple[Array, Array, Array]:
    return rollout.terminated, rollout.truncated, rollout.failed


def trajectory_ids(env_ids: list[bytes], agent_ids: list[str], episodes: Array, first_steps: Array) -> list[bytes]:
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
    stray_row, stray_lane = (found[::-1] for found in np.nonzero(~valid & ~rollout.failed & (last_valid > last_end)))
    later = np.zeros_like(reward)
    # Sums of what an environment paid: NaN and infinity are passed on, not complained about here. The latest first, as
    # `returns.gae` adds them, so that the sums are the same bits.
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(later, (last_valid[stray_row, stray_lane], stray_lane), reward[stray_row, stray_lane])
        return np.asarray(later + reward)
