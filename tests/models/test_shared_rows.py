"""Rows of which many share a part."""

import numpy as np
import pytest

from relayrl.models.networks import shared_rows
from relayrl.models.networks.shared_rows import OwnColumns, SharedPart, SharedRows

ENVS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
AGENTS = np.eye(2, dtype=np.float32)


def make_rows(env=(0, 0, 1), agent=(0, 1, 1)) -> SharedRows:
    return SharedRows((SharedPart(ENVS, np.array(env)), SharedPart(AGENTS, np.array(agent))))


def test_rows_are_their_lines_side_by_side():
    rows = make_rows()
    assert (len(rows), rows.width) == (3, 4)
    np.testing.assert_array_equal(rows.laid_out(), [[1, 2, 1, 0], [1, 2, 0, 1], [3, 4, 0, 1]])
    np.testing.assert_array_equal(rows[[2, 0]].laid_out(), [[3, 4, 0, 1], [1, 2, 1, 0]])
    assert rows[1:].parts[0].table is ENVS


def test_joined_rows_follow_each_other():
    joined = SharedRows.joined([make_rows(), make_rows((1,), (0,))])
    np.testing.assert_array_equal(joined.laid_out(), [*make_rows().laid_out(), [3, 4, 1, 0]])


def test_some_rows_take_lines_of_their_own():
    rows = make_rows((0, 0, 1, 1), (0, 1, 0, 1))
    own = OwnColumns(np.array([1, 0]), np.array([[7.0], [8.0]], np.float32))
    changed = rows.with_own_of(np.array([1, 2]), own)
    np.testing.assert_array_equal(changed.laid_out(), [[1, 2, 1, 0], [1, 7, 0, 1], [8, 4, 1, 0], [3, 4, 0, 1]])
    assert changed.parts[0].line.tolist() == [0, 1, 3, 2]
    np.testing.assert_array_equal(rows.laid_out(), make_rows((0, 0, 1, 1), (0, 1, 0, 1)).laid_out())


def test_pieces_hold_as_many_rows_as_take_little_memory(monkeypatch):
    monkeypatch.setattr(shared_rows, "PIECE_NUMBERS", 9)
    rows = make_rows()
    assert [len(piece) for piece in rows.pieces()] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(list(rows.pieces())), rows.laid_out())
    assert [piece.shape for piece in rows[:0].pieces()] == [(0, 4)]


def test_moments_are_those_of_the_rows():
    rows = make_rows()
    mean, variance = rows.moments()
    np.testing.assert_allclose(mean, [5 / 3, 8 / 3, 1 / 3, 2 / 3])
    np.testing.assert_allclose(variance, rows.laid_out().astype(np.float64).var(0))


def test_changed_tables_know_their_columns():
    shift = np.array([10.0, 20.0, 30.0, 40.0], np.float32)
    changed = make_rows().with_tables(lambda table, columns: table + shift[columns])
    np.testing.assert_array_equal(changed.laid_out(), make_rows().laid_out() + shift)


@pytest.mark.parametrize(("num_rows", "pays"), [(100, False), (131, False), (132, True)])
def test_factoring_pays_where_enough_is_shared(num_rows, pays):
    """Tables of 100 · 126 + 4 = 12,604 numbers, beside rows of 128: 32 of each are saved from 12,604 / 96 = 131.3 rows on."""
    envs = np.zeros((100, 126), np.float32)
    rows = SharedRows((SharedPart(envs, np.zeros(num_rows, int)), SharedPart(AGENTS, np.zeros(num_rows, int))))
    assert rows.pays_factored(num_rows) == pays
