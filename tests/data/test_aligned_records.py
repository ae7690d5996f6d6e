"""Rollouts of several groups whose agents appear, die, wait, leave and fail: split into trajectories and stacked again, they
give the same advantages, critic inputs and replayed transitions as the rollouts themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shifting_teams import GROUPS, HEADERS, STATE, Moods, ShiftingTeams, advantages, collect, trajectories_of

from relayrl.data.arrow.codec import decode_rollout, decode_trajectory, encode
from relayrl.data.columns import Rollout, Trajectory, joined_rollouts
from relayrl.data.stacking import joint_envs, stack_jointly
from relayrl.training.replay.joint_replay import JointReplay

moods = st.builds(
    Moods,
    appear=st.sampled_from([0.0, 0.4]),
    wait=st.sampled_from([0.0, 0.3, 0.7]),
    terminate=st.sampled_from([0.0, 0.1, 0.4]),
    truncate=st.sampled_from([0.0, 0.1, 0.4]),
    fail=st.sampled_from([0.0, 0.1]),
)
slow_enough = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 9), moods)
@slow_enough
def test_advantages_and_what_critics_see_are_those_of_the_rollout(
    seed: int, envs: int, length: int, mood: Moods
) -> None:
    for block in collect(ShiftingTeams(seed, envs, mood), [length, length]):
        trajectories = [decode_trajectory(encode(t)) for t in trajectories_of(block)]
        if trajectories and not any(map(has_silent_lanes, block.values())):
            assert advantages(stack_jointly(trajectories, HEADERS)) == advantages(block)


def has_silent_lanes(rollout: Rollout) -> bool:
    """Whether a lane acted before the block and not in it: it leaves no trajectory that says it is still there."""
    before_end = np.cumsum(rollout.ended, 0) - rollout.ended == 0
    return bool(((rollout.first_step > 0) & ~(rollout.valid & before_end).any(0)).any())


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 9), moods)
@slow_enough
def test_a_stack_is_split_into_the_same_trajectories(seed: int, envs: int, length: int, mood: Moods) -> None:
    (block,) = collect(ShiftingTeams(seed, envs, mood), [length])
    sent = {name: decode_rollout(encode(rollout)) for name, rollout in block.items()}
    trajectories = trajectories_of(sent)
    if trajectories:
        back = trajectories_of(stack_jointly(trajectories, HEADERS))
        assert sorted(map(outline, back)) == sorted(map(outline, map(closed, trajectories)))


def closed(t: Trajectory) -> Trajectory:
    """A stack ends a lane that goes on with a void row."""
    goes_on = not (t.terminated or t.truncated)
    return replace(t, truncated=True, failed=True, end_step=t.end_step + 1) if goes_on else t


def outline(t: Trajectory) -> tuple[Any, ...]:
    flags = (t.terminated, t.truncated, t.failed)
    return (
        str(t.trajectory_id),
        t.agent_id,
        t.episode,
        t.first_step,
        t.end_step,
        t.steps.tolist(),
        flags,
        t.reward.tolist(),
    )


def replayed(rollouts: list[dict[str, Rollout]], n: int) -> Iterator[tuple[Any, ...]]:
    """Every joint transition: what is seen of those that act, and of what follows."""
    size = sum(next(iter(block.values())).num_steps for block in rollouts)
    replay = JointReplay(size, 1, state_space=STATE)
    for block in rollouts:
        replay.add(block)
    batch = replay.sample(size, _InOrder(), gamma=0.9, num_step_returns=n)  # type: ignore[arg-type]
    for row in range(size):
        parts = []
        for group in batch.groups.values():
            valid, sees = group.valid[row], group.next_valid[row] | group.valid[row]
            parts += [valid.tolist(), group.next_valid[row].tolist()]
            parts += [np.asarray(column)[row][valid].tolist() for column in (group.obs, group.action, group.reward)]
            parts += [np.asarray(group.next_obs)[row][sees].tolist(), group.discount[row][valid].tolist()]
        if any(group.valid[row].any() for group in batch.groups.values()):
            yield (*parts, np.asarray(batch.state)[row].tolist(), np.asarray(batch.next_state)[row].tolist())


class _InOrder:
    """Draws every row once."""

    def integers(self, high: int, size: int) -> np.ndarray:
        assert high == size
        return np.arange(size)


@pytest.mark.parametrize("n", [1, 3])
@given(st.integers(0, 2**32), st.integers(1, 9), moods)
@slow_enough
def test_replay_holds_the_transitions_of_the_rollout(n: int, seed: int, length: int, mood: Moods) -> None:
    teams = ShiftingTeams(seed, 1, Moods(mood.appear, 0.0, mood.terminate, mood.truncate, mood.fail))
    blocks = collect(teams, [length, length])
    whole = {name: joined_rollouts([block[name] for block in blocks]) for name in GROUPS}
    episodes = joint_envs(t for block in blocks for t in trajectories_of(block))
    rebuilt = [stack_jointly(members, HEADERS) for members in sorted(episodes, key=lambda e: e[0].episode)]
    if rebuilt:
        assert list(replayed(rebuilt, n)) == list(replayed([whole], n))
