"""Cuts the consecutive rollouts of a run into trajectories of which no reward and no end is missing.

`splitting` cuts one block. What arrives for a lane before its first action of a block belongs to its last action of the block
before: in a game of turns, the loser's reward and end arrive on the winner's move. So the last action of a lane that waits when
a block ends (`Rollout.waits`) is held back, as a trajectory of one row, until the lane acts again or its episode ends:

- what arrives until then is added to its reward;
- it covers the blocks in which the lane does nothing, and what followed them is what followed it;
- an end that comes before the next action is its end.

Where every lane acts on every row, nothing is held back and nothing is done here. One end is not recorded: where an environment
fails on the first row of a block and a lane was about to act, that action is void and the trajectory before is written already.
It goes on, and no other follows it in its episode. `stacking` reads that as the failure that it was.

Not its job: how long a row is held back when a run stops, which is its caller's to decide (`take_open_rows`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.splitting import followed, split_rollout, trajectory_ids
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders, joined_blocks
from relayrl.data.trees import Array


class RolloutSplitter:
    """Cuts blocks of the lanes of one group, which must follow each other."""

    def __init__(self, open_rows: TrajectoryBlock | None = None) -> None:
        """`open_rows` are those of another splitter, whose blocks go on here."""
        self._open = None if open_rows is None else layout_book().blocks(open_rows)[0]

    @property
    def open_rows(self) -> TrajectoryBlock | None:
        """The last actions of lanes that wait, as far as it is known what came of them; each a trajectory that goes on."""
        return self._open

    def take_open_rows(self) -> TrajectoryBlock | None:
        """The same; they are not held back any more, and what may still arrive is lost."""
        taken, self._open = self._open, None
        return taken

    def split(self, rollout: Rollout) -> TrajectoryBlock:
        """The trajectories of the next block, after those that it completes."""
        block, before = split_rollout(rollout), self._open
        if rollout.waits is None and before is None:
            return block
        block, opened = _without_open_rows(block, rollout)
        if before is None:
            self._open = opened if len(opened) else None
            return block
        before, is_complete = _with_arrivals(before, rollout)
        still_open = joined_blocks([before.chosen(~is_complete), opened])
        self._open = still_open if len(still_open) else None
        return joined_blocks([before.chosen(is_complete), block])


class _Cut(NamedTuple):
    kept: TrajectoryBlock
    opened: TrajectoryBlock


def _without_open_rows(block: TrajectoryBlock, rollout: Rollout) -> _Cut:
    """The block without the last actions of lanes that wait, and those."""
    headers = block.headers
    is_open = ~(headers.terminated | headers.truncated)
    going_on = np.flatnonzero(is_open)
    if rollout.waits is None:
        is_open[:] = False
    else:
        is_open[going_on] = rollout.waits[_lanes(headers.taken(going_on), rollout.header)]
    rows, steps = headers.ends[is_open] - 1, block.row_steps()
    own = headers.taken(np.flatnonzero(is_open))
    first_step = np.where(own.num_steps > 1, steps[rows], own.first_step)
    ids = trajectory_ids(own.env_ids, own.agent_ids, own.episode, first_step)
    opened = TrajectoryBlock(
        block.layout,
        replace(own, trajectory_ids=ids, first_step=first_step, num_steps=np.ones_like(rows)),
        tuple(array[rows] for array in block.arrays),
        tuple(final[is_open] for final in block.finals),
        None if block.steps is None else steps[rows],
    )
    if not len(opened):
        return _Cut(block, opened)
    end_step = headers.end_step
    headers = replace(
        headers,
        num_steps=headers.num_steps - is_open,
        end_step=None if end_step is None else _changed(end_step, is_open, steps[rows]),
    )
    is_kept = np.ones(block.num_rows, bool)
    is_kept[rows] = False
    # What followed the action before is what the lane saw when it chose the one that is held back.
    seen = (block.column(leaf)[rows] for leaf in block.layout.followed)
    has_rows = headers.num_steps > 0
    kept = TrajectoryBlock(
        block.layout,
        headers.taken(np.flatnonzero(has_rows)),
        tuple(array[is_kept] for array in block.arrays),
        tuple(_changed(final, is_open, own)[has_rows] for final, own in zip(block.finals, seen, strict=True)),
        None if block.steps is None else steps[is_kept],
    )
    return _Cut(kept, opened)


def _with_arrivals(block: TrajectoryBlock, rollout: Rollout) -> tuple[TrajectoryBlock, Array]:
    """Open rows with what the rollout brings before their lanes act again, and [K] which of them nothing more arrives for."""
    headers, T, L = block.headers, rollout.num_steps, rollout.num_lanes
    lane, which = _lanes(headers, rollout.header), np.arange(len(headers))
    env = lane // len(rollout.header.agent_ids)
    if rollout.env_episode is None or rollout.env_step is None:
        # A lane is in the episode of its first row until it ends, and has counted its steps since it acted.
        episode = np.broadcast_to(rollout.first_episode[lane], (T, len(lane)))
        step = rollout.first_step[lane] + np.arange(T)[:, None]
    else:
        episode, step = rollout.env_episode[:, env], rollout.env_step[:, env]
    is_given_up = episode != headers.episode
    valid, ended, failed = (column[:, lane] for column in (rollout.valid, rollout.ended, rollout.failed))
    settles = valid | ended | is_given_up
    is_complete = settles.any(0)
    row = np.where(is_complete, settles.argmax(0), T - 1)
    ends = is_complete & ~(valid | is_given_up)[row, which]
    covers = ends | ~is_complete  # the row, and all before it
    arrives = (np.arange(T)[:, None] < row + covers) & ~failed
    with np.errstate(invalid="ignore", over="ignore"):
        later = np.where(arrives, rollout.reward[:, lane], np.float32(0.0)).sum(0, dtype=np.float64)
        reward = (block.arrays[0] + later).astype(np.float32)
    flags = {
        name: getattr(headers, name) | (ends & getattr(rollout, name)[row, lane])
        for name in ("terminated", "truncated", "failed")
    }
    end_step = headers.end_step
    if end_step is not None:
        end_step = np.where(covers, step[row, which] + 1, end_step)
    successors = rollout.successors.step * L + rollout.successors.lane
    after = np.searchsorted(successors, (row * L + lane)[covers])
    finals = tuple(
        _changed(final, covers, leaf[after])
        for final, leaf in zip(block.finals, followed(block.layout, rollout), strict=True)
    )
    headers = replace(headers, **flags, end_step=end_step)
    return replace(block, headers=headers, arrays=(reward, *block.arrays[1:]), finals=finals), is_complete


def _lanes(headers: TrajectoryHeaders, header: LaneHeader) -> Array:
    """[K] the lane of each trajectory."""
    envs = {env_id.bytes: b for b, env_id in enumerate(header.env_ids)}
    agents = {agent_id: n for n, agent_id in enumerate(header.agent_ids)}
    names = zip(headers.env_ids, headers.agent_ids, strict=True)
    return np.array([envs[env] * len(agents) + agents[agent] for env, agent in names], np.int64)


def _changed(column: Array, where: Array, values: Array) -> Array:
    changed = column.copy()
    changed[where] = values
    return changed
