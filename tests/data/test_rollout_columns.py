"""Episode and step numbers, and the joint view, by hand; `number_rows` and its check against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from data_strategies import examples, rollouts
from hypothesis import given

from relayrl.bench.codec_rows import example_rollout
from relayrl.data.columns import Rollout
from relayrl.data.row_rules import number_rows, rows_are_numbered, rows_with_successor


def test_numbers_run_on_within_a_lane_and_begin_anew_after_its_ends() -> None:
    #          lane 0 ends on rows 1 and 2, lane 1 never, lane 2 on the last row
    ended = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]], dtype=bool)
    episode, step = number_rows(ended, np.array([5, 7, 0]), np.array([3, 10, 0]))
    assert episode.tolist() == [[5, 7, 0], [5, 7, 0], [6, 7, 0], [7, 7, 0]]
    assert step.tolist() == [[3, 10, 0], [4, 11, 1], [0, 12, 2], [0, 13, 3]]
    assert (episode.dtype, step.dtype) == (np.int64, np.int64)


def test_numbers_beyond_32_bits_are_exact() -> None:
    ended = np.array([[1], [0]], dtype=bool)
    episode, step = number_rows(ended, np.array([2**40]), np.array([2**50]))
    assert episode.tolist() == [[2**40], [2**40 + 1]]
    assert step.tolist() == [[2**50], [0]]


def test_a_block_without_rows_has_no_numbers() -> None:
    episode, step = number_rows(np.zeros((0, 2), bool), np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert (episode.shape, step.shape) == ((0, 2), (0, 2))


@examples(100)
@given(rollouts())
def test_numbers_are_those_of_a_plain_loop(rollout: Rollout) -> None:
    rollout = replace(rollout, env_episode=None, env_step=None)  # which would be the numbers
    episode, step, ended = rollout.first_episode.copy(), rollout.first_step.copy(), rollout.ended
    for t in range(rollout.num_steps):
        assert rollout.episode()[t].tolist() == episode.tolist()
        assert rollout.step()[t].tolist() == step.tolist()
        episode, step = episode + ended[t], np.where(ended[t], 0, step + 1)
    assert rows_are_numbered(ended, rollout.episode(), rollout.step())


@pytest.mark.parametrize("column", ["episode", "step"])
@pytest.mark.parametrize("row", [0, 1, 4321, 9999])
@pytest.mark.parametrize("by", [-1, 1])
def test_one_wrong_number_anywhere_is_found(column: str, row: int, by: int) -> None:
    rollout = example_rollout(10_000, 16)
    columns = {"episode": rollout.episode(), "step": rollout.step()}
    assert rows_are_numbered(rollout.ended, **columns)
    columns[column][row, 7] += by
    assert not rows_are_numbered(rollout.ended, **columns)


@pytest.mark.parametrize("column", ["episode", "step"])
def test_a_run_that_begins_with_a_wrong_number_is_found(column: str) -> None:
    ended = np.array([[0], [1], [0], [0]], dtype=bool)
    columns = {"episode": np.array([[3], [3], [4], [4]]), "step": np.array([[5], [6], [0], [1]])}
    assert rows_are_numbered(ended, **columns)
    columns[column][2:] += 2
    assert not rows_are_numbered(ended, **columns)


def test_successors_follow_episode_ends_and_the_last_row() -> None:
    ended = np.array([[0, 1], [0, 0], [1, 0]], dtype=bool)
    assert rows_with_successor(ended).tolist() == [[False, True], [False, False], [True, True]]
    assert ended[2].tolist() == [True, False]


def test_the_joint_view_puts_agents_of_one_env_side_by_side_without_a_copy() -> None:
    rollout = example_rollout(2, 6)
    header = rollout.header
    rollout = Rollout(
        **{name: getattr(rollout, name) for name in rollout.__slots__ if name != "header"},
        header=type(header)(
            header.group, header.env_ids[:2], ("a", "b", "c"), header.observation_space, header.action_space
        ),
    )
    joint = rollout.joint(rollout.obs)
    assert joint.shape == (2, 2, 3, 8)
    assert np.shares_memory(joint, rollout.obs)
    assert joint[1, 1, 2].tolist() == rollout.obs[1, 5].tolist()
    assert rollout.joint({"r": rollout.reward})["r"][0, 1, 0] == rollout.reward[0, 3]
