"""One lane, recorded step by step by a program."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.data.arrow.codec import decode_trajectory, encode
from relayrl.data.columns import LaneHeader, Trajectory
from relayrl.data.steps.trajectory_builder import TrajectoryBuilder
from relayrl.errors import ConfigError

ENV_ID = uuid.UUID(int=1)
HEADER = LaneHeader("g", (ENV_ID,), ("a",), spaces.Box(-1e9, 1e9, (1,)), spaces.Discrete(9))


def builder(max_length: int = 100, **options: Any) -> TrajectoryBuilder:
    return TrajectoryBuilder(HEADER, max_length=max_length, **options)


def act(recorder: TrajectoryBuilder, number: int, reward: float | None = None, **columns: Any) -> Trajectory | None:
    fragment = recorder.record_action(np.array([number]), number % 9, policy_version=number, **columns)
    if reward is not None:
        recorder.record_reward(reward)
    return fragment


def test_an_episode_is_recorded_from_first_action_to_end() -> None:
    recorder = builder()
    for number, reward in ((1, 0.5), (2, 1.5), (3, -1.0)):
        assert act(recorder, number, reward) is None
    assert len(recorder) == 3
    trajectory = recorder.end(True, False, np.array([4.0]))
    assert trajectory is not None
    assert trajectory.obs.tolist() == [[1], [2], [3]]
    assert trajectory.action.tolist() == [1, 2, 3]
    assert trajectory.reward.tolist() == [0.5, 1.5, -1.0]
    assert trajectory.policy_version.tolist() == [1, 2, 3]
    assert (trajectory.terminated, trajectory.truncated, trajectory.failed) == (True, False, False)
    assert trajectory.final_obs.tolist() == [4]
    assert (trajectory.episode, trajectory.first_step, trajectory.is_whole) == (0, 0, True)
    assert trajectory.trajectory_id == uuid.uuid5(ENV_ID, "a/0/0")
    assert trajectory.episode_return == 1.0
    assert decode_trajectory(encode(trajectory)).reward.tolist() == [0.5, 1.5, -1.0]


def test_rewards_add_up_on_the_last_action_and_none_means_zero() -> None:
    recorder = builder()
    act(recorder, 1)
    act(recorder, 2, 1.0)
    recorder.record_reward(2.0)
    trajectory = recorder.end(False, True, np.array([0.0]))
    assert trajectory is not None
    assert trajectory.reward.tolist() == [0, 3]


def test_rewards_of_an_earlier_trajectory_do_not_stay_behind() -> None:
    recorder = builder()
    act(recorder, 1, 5.0)
    recorder.end(True, False, np.array([0.0]))
    act(recorder, 2)
    second = recorder.end(True, False, np.array([0.0]))
    assert second is not None
    assert second.reward.tolist() == [0]
    assert second.episode == 1


def test_the_longest_length_cuts_a_fragment_that_goes_on_with_the_next_observation() -> None:
    recorder = builder(max_length=2)
    assert act(recorder, 1, 0.1) is None
    assert act(recorder, 2, 0.2) is None
    first = act(recorder, 3, 0.3)
    assert first is not None
    assert first.obs.tolist() == [[1], [2]]
    assert first.reward.tolist() == pytest.approx([0.1, 0.2])
    assert (first.terminated, first.truncated, first.final_obs.tolist()) == (False, False, [3])
    second = recorder.end(True, False, np.array([4.0]))
    assert second is not None
    assert (second.obs.tolist(), second.episode, second.first_step) == ([[3]], 0, 2)
    assert first.trajectory_id != second.trajectory_id
    assert not second.is_whole


def test_an_end_right_at_the_longest_length_needs_no_further_fragment() -> None:
    recorder = builder(max_length=2)
    act(recorder, 1)
    act(recorder, 2)
    whole = recorder.end(True, False, np.array([3.0]))
    assert whole is not None
    assert (len(whole), whole.is_whole) == (2, True)


def test_columns_grow_and_trajectories_keep_their_values() -> None:
    recorder = builder(max_length=1000)
    for number in range(300):
        act(recorder, number, float(number))
    first = recorder.end(True, False, np.array([0.0]))
    for number in range(300):
        act(recorder, -number)
    assert first is not None
    assert first.obs[:, 0].tolist() == list(range(300))
    assert first.reward.tolist() == list(range(300))


def test_a_cut_takes_what_is_there_and_the_episode_goes_on() -> None:
    recorder = builder()
    act(recorder, 1)
    cut = recorder.cut(np.array([2.0]))
    assert cut is not None
    assert (cut.terminated, cut.truncated, cut.final_obs.tolist()) == (False, False, [2])
    assert recorder.cut(np.array([2.0])) is None
    act(recorder, 2)
    rest = recorder.end(False, True, np.array([3.0]))
    assert rest is not None
    assert (rest.episode, rest.first_step) == (0, 1)


def test_a_failure_voids_the_last_action() -> None:
    recorder = builder()
    act(recorder, 1, 1.0)
    act(recorder, 2, 7.0)
    failed = recorder.fail()
    assert failed is not None
    assert failed.reward.tolist() == [1]
    assert (failed.failed, failed.truncated, failed.terminated) == (True, True, False)
    assert failed.final_obs.tolist() == [2]
    act(recorder, 5)
    assert recorder.fail() is None
    assert recorder.fail() is None
    act(recorder, 6)
    after = recorder.end(True, False, np.array([0.0]))
    assert after is not None
    assert after.episode == 3


def test_an_episode_without_actions_yields_nothing_and_is_counted() -> None:
    recorder = builder(first_episode=5)
    assert recorder.end(True, False, np.array([0.0])) is None
    act(recorder, 1)
    trajectory = recorder.end(True, False, np.array([0.0]))
    assert trajectory is not None
    assert trajectory.episode == 6


def test_optional_columns_are_recorded() -> None:
    recorder = builder(mask_width=2, with_logp=True, with_value=True, memory_space=spaces.Box(-1, 1, (2,)))
    act(recorder, 1, logp=-0.5, value=0.25, action_mask=np.array([True, False]), memory=np.array([0.5, 1.0]))
    act(recorder, 2, logp=-1.5, value=1.25, memory=np.array([0.0, 0.0]))
    trajectory = recorder.end(True, False, np.array([0.0]))
    assert trajectory is not None
    assert trajectory.logp.tolist() == [-0.5, -1.5]
    assert trajectory.value.tolist() == [0.25, 1.25]
    assert trajectory.action_mask.tolist() == [[True, False], [True, True]]
    assert trajectory.memory.tolist() == [[0.5, 1.0], [0.0, 0.0]]


def test_observations_that_the_program_reuses_are_copied() -> None:
    recorder, obs = builder(), np.array([1.0])
    recorder.record_action(obs, 0)
    obs[0] = 2.0
    trajectory = recorder.end(True, False, obs)
    obs[0] = 3.0
    assert trajectory is not None
    assert (trajectory.obs.tolist(), trajectory.final_obs.tolist()) == ([[1]], [2])


def test_misuse_says_what_to_do() -> None:
    recorder = builder(with_logp=True)
    with pytest.raises(ConfigError, match="before any action"):
        recorder.record_reward(1.0)
    with pytest.raises(ConfigError, match="logp must be given exactly when"):
        act(recorder, 1)
    with pytest.raises(ConfigError, match="without mask_width"):
        act(recorder, 1, logp=0.0, action_mask=np.array([True]))
    with pytest.raises(ConfigError, match="terminated or truncated"):
        recorder.end(False, False, np.array([0.0]))
    with pytest.raises(ConfigError, match="at least one step"):
        builder(max_length=0)
    with pytest.raises(ConfigError, match="header of 2 lanes"):
        TrajectoryBuilder(
            LaneHeader("g", (ENV_ID,), ("a", "b"), HEADER.observation_space, HEADER.action_space), max_length=1
        )


def test_steps_of_the_environment_are_kept() -> None:
    recorder = builder(2)
    fragments = [recorder.record_action(np.zeros(1, np.float32), 0, step=step) for step in (1, 3, 4, 8)]
    fragments.append(recorder.end(True, False, np.zeros(1, np.float32), step=9))
    found = [(t.first_step, t.end_step, t.steps.tolist()) for t in fragments if t is not None]
    assert found == [(0, 4, [1, 3]), (4, 10, [4, 8])]
    recorder.record_action(np.zeros(1, np.float32), 0)
    assert not recorder.end(True, False, np.zeros(1, np.float32)).knows_steps


def test_steps_increase_and_are_given_for_all_actions_or_none() -> None:
    recorder = builder(5)
    recorder.record_action(np.zeros(1, np.float32), 0, step=3)
    with pytest.raises(ConfigError, match="steps increase"):
        recorder.record_action(np.zeros(1, np.float32), 0, step=3)
    with pytest.raises(ConfigError, match="for every action"):
        recorder.record_action(np.zeros(1, np.float32), 0)
    recorder.record_action(np.zeros(1, np.float32), 0, step=4)
    failed = recorder.fail()
    assert (failed.steps.tolist(), failed.end_step) == ([3], 5)


def test_trees_of_actions_and_memory_are_recorded_by_the_names_of_their_spaces() -> None:
    pair = spaces.Dict(left=spaces.Discrete(3), right=spaces.Box(-1, 1, (200,)))
    memory = spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,))))
    header = LaneHeader("g", (ENV_ID,), ("a",), spaces.Box(-1, 1, (1,)), pair)
    recorder = TrajectoryBuilder(header, max_length=100, memory_space=memory)
    for number in range(70):
        action = {"right": np.full(200, number / 100), "left": number % 3}
        recorder.record_action([0.5], action, memory=([number], [1, number]))
    trajectory = recorder.end(True, False, [1.0])
    assert trajectory is not None
    assert list(trajectory.action) == ["left", "right"]
    assert trajectory.action["left"].tolist() == [number % 3 for number in range(70)]
    assert trajectory.action["right"][:, 7] == pytest.approx(np.arange(70) / 100)
    assert trajectory.memory[1].tolist() == [[1, number] for number in range(70)]


def test_a_call_that_raises_leaves_the_steps_as_they_were() -> None:
    recorder = builder()
    with pytest.raises(ConfigError, match=r"obs has shape \(2,\), expected \(1,\)"):
        recorder.record_action(np.zeros(2), 0)
    assert len(recorder) == 0
    act(recorder, 1, 1.0)
    with pytest.raises(ConfigError, match=r"obs has shape \(2,\), expected \(1,\)"):
        recorder.record_action(np.zeros(2), 0)
    with pytest.raises(ConfigError, match="none for the actions"):
        recorder.end(True, False, np.array([2.0]), step=4)
    trajectory = recorder.end(True, False, np.array([2.0]))
    assert trajectory is not None
    assert (trajectory.obs.tolist(), trajectory.reward.tolist(), trajectory.episode) == ([[1]], [1], 0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((np.array([1.0]), 0.5), "action has dtype float64, expected int64"),
        ((np.array([1.0]), None), "action has dtype object"),
        ((np.array([1.0]), np.array([1, 0])), r"action has shape \(2,\)"),
        ((None, 0), "obs has dtype object"),
        (("left", 0), "obs has dtype <U4, expected float32"),
        ((np.array([1.0]), 0, np.ones(2, bool)), "without mask_width"),
    ],
)
def test_what_is_no_step_of_the_spaces_is_refused(arguments: tuple[Any, ...], match: str) -> None:
    recorder = builder()
    with pytest.raises(ConfigError, match=match):
        recorder.record_action(*arguments)
    assert len(recorder) == 0


@pytest.mark.parametrize("reward", [np.nan, 1e300, "high", None, [1.0, 2.0]])
def test_rewards_are_finite_numbers(reward: Any) -> None:
    recorder = builder()
    act(recorder, 1, 1.0)
    with pytest.raises(ConfigError, match="reward"):
        recorder.record_reward(reward)
    trajectory = recorder.end(True, False, np.array([2.0]))
    assert trajectory is not None
    assert trajectory.reward.tolist() == [1.0]


def test_final_observations_have_the_form_of_the_others() -> None:
    for wrong in (None, np.zeros(3)):
        recorder = builder()
        act(recorder, 1, 1.0)
        with pytest.raises(ConfigError, match="final_obs has"):
            recorder.end(False, True, wrong)  # type: ignore[arg-type]
        assert recorder.end(False, True, np.array([2.0])) is not None
