"""Sequences: hand-computed cuts and packings."""

import numpy as np

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
