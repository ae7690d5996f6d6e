"""Pages of steps against the trajectory builder: the same calls give the same trajectories."""

import uuid

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.data.columns import LaneHeader
from relayrl.data.steps.step_pages import PAGE_ROWS, StepPages
from relayrl.data.steps.step_rows import ActingLayout
from relayrl.data.steps.trajectory_builder import TrajectoryBuilder
from relayrl.errors import ConfigError

OBS, ACT = spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(4)
LAYOUT = ActingLayout("agent", OBS, ACT, 4, needs_mask=False, has_logp=True, has_value=True)


def same(one, other) -> bool:
    names = (
        "trajectory_id",
        "env_id",
        "agent_id",
        "group",
        "episode",
        "first_step",
        "terminated",
        "truncated",
        "failed",
    )
    columns = ("obs", "action", "reward", "policy_version", "logp", "value", "action_mask", "final_obs", "final_mask")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in columns
    )


@settings(max_examples=60, deadline=None)
@given(
    max_length=st.sampled_from([1, 3, 64, 65, 150]),
    moves=st.lists(
        st.tuples(st.sampled_from(["step", "step", "step", "many", "end", "cut"]), st.integers(1, 100)), max_size=30
    ),
)
def test_pages_give_what_the_builder_gives(max_length, moves):
    pages, L = StepPages(LAYOUT, max_length), 3
    lanes = [pages.open_lane(uuid.UUID(int=i + 1), f"actor-{i}") for i in range(L)]
    numbers = np.array([lane.number for lane in lanes])
    builders = [
        TrajectoryBuilder(
            LaneHeader("agent", (lane.key,), (lane.agent_id,), OBS, ACT),
            max_length=max_length,
            mask_width=4,
            with_logp=True,
            with_value=True,
        )
        for lane in lanes
    ]
    got, expected, t = [], [], 0

    def step(rows: list[int]) -> None:
        nonlocal t
        t += 1
        obs = np.array([[10.0 * t + i] for i in rows], np.float32)
        action, logp = np.array([(t + i) % 4 for i in rows]), np.array([-0.1 * i for i in rows], np.float32)
        mask = np.array([[True, (t + i) % 2 == 0, True, True] for i in rows])
        reward = np.array([float(t + i) if len(builders[i]) else 0.0 for i in rows], np.float32)
        for k, i in enumerate(rows):
            if len(builders[i]):
                builders[i].record_reward(float(reward[k]))
            fragment = builders[i].record_action(obs[k], action[k], mask[k], float(logp[k]), 0.5 * t, t)
            expected.extend([] if fragment is None else [fragment])
        value = np.full(len(rows), 0.5 * t, np.float32)
        if len(rows) == 1:
            cut = pages.append_one(lanes[rows[0]], obs, action, logp, value, t, mask, float(reward[0]))
        else:
            cut = pages.append(numbers[rows], obs, action, logp, value, t, mask, reward)
        got.extend(trajectory for _, trajectory in cut)

    for move, number in moves:
        if move == "step":
            step([number % L])
        elif move == "many":
            for _ in range(number % 70):
                step([0, 1, 2] if number % 2 else [2, 0])
        elif len(builders[number % L]):
            i, final = number % L, np.array([float(number)], np.float32)
            if move == "end":
                builders[i].record_reward(7.0)
                mask = np.arange(4) == number % 4 if number % 2 else None
                expected.append(builders[i].end(True, False, final, mask))
                got.append(pages.end(lanes[i], 7.0, True, False, final, mask))
            else:
                interrupted = pages.interrupt(lanes[i])
                assert (interrupted.failed, interrupted.truncated) == (True, True)
                ended = builders[i].end(False, True, interrupted.final_obs)
                assert len(interrupted) == len(ended)
                assert np.array_equal(interrupted.final_mask, ended.action_mask[-1])
                assert np.array_equal(interrupted.obs, ended.obs)
    assert len(got) == len(expected)
    assert all(same(one, other) for one, other in zip(got, expected, strict=True))


def test_memory_follows_open_steps_and_is_used_again():
    pages = StepPages(LAYOUT, 10_000)
    lane = pages.open_lane(uuid.uuid4(), "a")
    one = np.zeros(1, np.float32)
    for _ in range(20):
        for _ in range(20 * PAGE_ROWS):
            pages.append_one(lane, one[None], np.array([1]), one, one, 0, None, None)
        assert len(pages.end(lane, 0.0, True, False, None)) == 20 * PAGE_ROWS
    assert pages.num_pages == 32


def test_lanes_are_used_again_and_old_ones_are_not_open():
    pages = StepPages(LAYOUT, 10)
    first = pages.open_lane(uuid.uuid4(), "a")
    pages.close_lane(first)
    second = pages.open_lane(uuid.uuid4(), "b")
    assert second.number == first.number
    assert (pages.is_open(first), pages.is_open(second)) == (False, True)
    with pytest.raises(ConfigError, match="was removed"):
        pages.end(first, 0.0, True, False, None)


def test_a_shorter_limit_cuts_at_the_next_step():
    pages = StepPages(LAYOUT, 100)
    lane, one = pages.open_lane(uuid.uuid4(), "a"), np.zeros(1, np.float32)
    arguments = (lane, one[None], np.array([1]), one, one, 0, None, None)
    for _ in range(50):
        assert pages.append_one(*arguments) == []
    pages.set_max_length(20)
    (cut,) = pages.append_one(*arguments)
    assert len(cut[1]) == 50
    assert sum(len(pages.append_one(*arguments)) for _ in range(40)) == 2
