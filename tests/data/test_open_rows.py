"""Consecutive blocks are cut into trajectories that hold every reward and every end, wherever the blocks are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shifting_teams import GROUPS, Moods, ShiftingTeams, collect
from test_aligned_records import moods
from test_splitting import one_lane

from relayrl.bench.codec_rows import example_rollout
from relayrl.data.arrow.codec import decode_block, encode_block
from relayrl.data.columns import Rollout, Trajectory, joined_rollouts
from relayrl.data.open_rows import RolloutSplitter

Episode = tuple[UUID, str, int]
slow_enough = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WAITS = np.array([True])


def split(blocks: list[Rollout], *, saved: bool = False) -> list[Trajectory]:
    """All trajectories of blocks of one group; `saved`: what is held back goes through bytes after each of them."""
    splitter, found = RolloutSplitter(), []
    for block in blocks:
        found += splitter.split(block)
        if saved:
            rows = splitter.open_rows
            splitter = RolloutSplitter(None if rows is None else decode_block(encode_block(rows)))
    return [*found, *(splitter.take_open_rows() or ())]


def paid(blocks: list[Rollout]) -> tuple[dict[Episode, float], dict[Episode, str]]:
    """Row by row: what lanes were paid from their first action of an episode to its end, and how it ended. A failure on the
    first row of a block is left out for lanes that did not wait when the block with their last action ended."""
    sums: dict[Episode, float] = {}
    ends: dict[Episode, str] = {}
    over, waited = set(), np.zeros(blocks[0].num_lanes, bool)
    for block in blocks:
        assert block.env_episode is not None
        for t, lane in np.ndindex(block.reward.shape):
            env, agent = divmod(lane, len(block.header.agent_ids))
            key = (block.header.env_ids[env], block.header.agent_ids[agent], int(block.env_episode[t, env]))
            if block.valid[t, lane]:
                sums.setdefault(key, 0.0)
            if key in sums and key not in over:
                if not block.failed[t, lane]:
                    sums[key] += float(block.reward[t, lane])
                if block.ended[t, lane]:
                    over.add(key)
                    if not (block.failed[t, lane] and t == 0 and not waited[lane]):
                        ends[key] = "".join("01"[int(flag[t, lane])] for flag in flags(block))
        waits = np.zeros_like(waited) if block.waits is None else block.waits
        waited = np.where(block.valid.any(0), waits, waited)
    return sums, ends


def flags(block: Rollout) -> tuple[np.ndarray, ...]:
    return block.terminated, block.truncated, block.failed


@pytest.mark.parametrize("saved", [False, True])
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.integers(1, 3),
    moods,
)
@slow_enough
def test_every_reward_and_end_is_in_the_trajectories(
    saved: bool, seed: int, envs: int, lengths: list[int], portion: int, mood: Moods
) -> None:
    """As recorders do, `portion` blocks at a time. What a lane does in an episode is tiled by its trajectories."""
    rollouts = collect(ShiftingTeams(seed, envs, mood), lengths)
    for name in GROUPS:
        parts_of = (rollouts[i : i + portion] for i in range(0, len(rollouts), portion))
        blocks = [joined_rollouts([each[name] for each in some]) for some in parts_of]
        found: dict[Episode, list[Trajectory]] = {}
        for each in split(blocks, saved=saved):
            found.setdefault((each.env_id, each.agent_id, each.episode), []).append(each)
        sums, ends = paid(blocks)
        assert found.keys() == sums.keys()
        assert {key: end_of(parts[-1]) for key, parts in found.items() if end_of(parts[-1]) != "000"} == ends
        for key, parts in found.items():
            assert sum(each.episode_return for each in parts) == pytest.approx(sums[key], abs=1e-4)
            assert parts[0].first_step == 0
            for one, other in pairwise(parts):
                assert one.end_step == other.first_step
                assert end_of(one) == "000"
        assert sum(map(len, (t for parts in found.values() for t in parts))) == sum(b.valid.sum() for b in blocks)
        ids = [each.trajectory_id for parts in found.values() for each in parts]
        assert len(set(ids)) == len(ids)


def end_of(t: Trajectory) -> str:
    return "".join("01"[flag] for flag in (t.terminated, t.truncated, t.failed))


def summary(t: Trajectory) -> tuple[Any, ...]:
    return t.first_step, t.end_step, t.obs.tolist(), t.reward.tolist(), end_of(t), float(t.final_obs)


def after(block: Rollout, num_steps: int) -> Rollout:
    """The block of `one_lane` so many steps later in the same episode."""
    return replace(block, first_step=block.first_step + num_steps)


def test_the_last_action_of_a_lane_that_waits_is_completed_by_the_next_block() -> None:
    """The loser's reward and end arrive on the winner's move: rows 0 and 1 of the second block."""
    splitter = RolloutSplitter()
    (first,) = splitter.split(one_lane("111.", waits=WAITS))
    # Its own action was chosen on observation 2, at step 7 + 2; step 3 brought another 3.
    assert summary(first) == (7, 9, [0, 1], [0, 1], "000", 2)
    assert [summary(each) for each in splitter.open_rows or ()] == [(9, 11, [2], [5], "000", 103)]
    second, third = splitter.split(after(one_lane("..11", terminated=".1.."), 4))
    assert summary(second) == (9, 13, [2], [5 + 0 + 1], "100", 101)
    assert summary(third) == (0, 2, [2, 3], [2, 3], "000", 103)
    assert splitter.open_rows is None


def test_a_lane_that_acts_again_gets_what_arrived_until_then() -> None:
    splitter = RolloutSplitter()
    assert not splitter.split(one_lane("1..", waits=WAITS))
    assert not splitter.split(after(one_lane("..", waits=WAITS), 3))
    held, new = splitter.split(after(one_lane(".11"), 5))
    assert summary(held) == (7, 12, [0], [0 + 1 + 2 + 0 + 1 + 0], "000", 101)
    assert summary(new) == (12, 15, [1, 2], [1, 2], "000", 102)


def test_a_failure_ends_what_is_held_back_and_pays_nothing() -> None:
    splitter = RolloutSplitter()
    splitter.split(one_lane("11", waits=WAITS))
    (held,) = splitter.split(after(one_lane("...", truncated="..1", failed="..1"), 2))
    assert summary(held) == (8, 12, [1], [1 + 0 + 1], "011", 102)


def test_nothing_arrives_from_another_episode() -> None:
    """Where a run could not save its environment, the next block begins an episode."""
    splitter = RolloutSplitter()
    splitter.split(one_lane("11", waits=WAITS))
    begun = replace(one_lane("..1", terminated=".1."), first_episode=np.array([5]), first_step=np.array([0]))
    held, new = splitter.split(begun)
    assert (held.episode, summary(held)) == (4, (8, 9, [1], [1], "000", 101))
    assert (new.episode, new.reward.tolist()) == (6, [2])


def test_what_the_lane_saw_last_stands_behind_what_is_handed_over() -> None:
    mask = np.array([[[True, False]], [[False, True]]])
    block = one_lane("11", action_mask=mask, waits=WAITS)
    block = replace(block, successors=replace(block.successors, action_mask=np.array([[True, True]])))
    splitter = RolloutSplitter()
    (first,) = splitter.split(block)
    (held,) = splitter.take_open_rows() or ()
    assert first.final_mask is not None
    assert (first.action_mask.tolist(), first.final_mask.tolist()) == ([[True, False]], [False, True])
    assert (held.action_mask.tolist(), held.final_mask.tolist()) == ([[False, True]], [True, True])


def test_where_every_lane_acts_nothing_is_held_back() -> None:
    splitter, rollout = RolloutSplitter(), example_rollout(40, 3, mean_episode_steps=8.0)
    assert rollout.valid.all()
    ids = [each.trajectory_id for each in splitter.split(rollout)]
    assert ids == [each.trajectory_id for each in rollout.trajectories()]
    assert splitter.open_rows is None
