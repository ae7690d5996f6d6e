"""Sequences: hand-computed cuts and packings."""

import numpy as np
import pytest
import torch

from relayrl.algorithms.updates.device_sequences import memory_starts
from relayrl.algorithms.updates.sequences import Sequences, cut, pack


def test_sequences_end_with_the_episode_and_at_the_length():
    usable = np.ones((5, 2), bool)
    ended = np.zeros((5, 2), bool)
    ended[1, 0] = True
    rows, sequences = cut(usable, ended, sequence_length=2)
    # Lane 0 is rows 0, 2, 4, 6, 8 of [T · L], lane 1 rows 1, 3, 5, 7, 9.
    assert rows.tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert sequences.first.tolist() == [0, 2, 4, 5, 7, 9]
    assert sequences.length.tolist() == [2, 2, 1, 2, 2, 1]


def test_rows_without_an_action_are_skipped_and_do_not_cut():
    usable = np.array([[True], [False], [True], [True], [False]])
    rows, sequences = cut(usable, np.zeros((5, 1), bool), sequence_length=10)
    assert rows.tolist() == [0, 2, 3]
    assert sequences.length.tolist() == [3]


def test_an_end_on_a_row_without_an_action_cuts():
    usable = np.array([[True], [False], [True], [True]])
    ended = np.array([[False], [True], [False], [False]])
    _, sequences = cut(usable, ended, sequence_length=10)
    assert sequences.first.tolist() == [0, 1]
    assert sequences.length.tolist() == [1, 2]


def test_an_end_on_the_last_row_of_a_lane_does_not_touch_the_next_lane():
    ended = np.zeros((3, 2), bool)
    ended[2, 0] = True
    _, sequences = cut(np.ones((3, 2), bool), ended, sequence_length=10)
    assert sequences.length.tolist() == [3, 3]


def test_nothing_usable_makes_no_sequences():
    rows, sequences = cut(np.zeros((3, 2), bool), np.zeros((3, 2), bool), sequence_length=4)
    assert len(rows) == len(sequences) == 0


def test_packing_goes_step_by_step_with_the_longest_first():
    packing = pack(Sequences(np.array([0, 2, 5]), np.array([2, 3, 1])))
    assert packing.order.tolist() == [1, 0, 2]
    assert packing.rows.tolist() == [2, 0, 5, 3, 1, 4]
    assert packing.batch_sizes.tolist() == [3, 2, 1]


@pytest.mark.parametrize("sequence_length", [1, 2, 3, 7, 12, 50])
def test_starts_inside_of_lanes_are_the_sequences_that_are_cut(sequence_length):
    generator = torch.Generator().manual_seed(sequence_length)
    for share in (0.0, 0.2, 1.0):
        ended = torch.rand(12, 9, generator=generator) < share
        begins = np.concatenate([np.zeros((1, 9), bool), ended[:-1].numpy()])
        before = torch.rand(12, 9, 2, generator=generator) + 1.0
        before[torch.from_numpy(begins)] = 0.0  # an episode begins with nothing
        rows, sequences = cut(np.ones((12, 9), bool), ended.numpy(), sequence_length)
        starts = memory_starts(ended, before, sequence_length)
        step, lane = np.divmod(rows[sequences.first], 9)
        expected = np.zeros((12, 9), bool)
        expected[step, lane] = True
        np.testing.assert_array_equal(starts.slot.numpy() >= 0, expected)
        given = starts.given[starts.slot[step, lane], lane]
        torch.testing.assert_close(given, before[step, lane], rtol=0, atol=0)
        if sequence_length >= 12:
            only_first = memory_starts(ended, before[:1], sequence_length)
            torch.testing.assert_close(only_first.given, starts.given, rtol=0, atol=0)
