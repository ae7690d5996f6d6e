"""Tictactoe's exact numbers: known counts of games, and ceilings that a game by hand confirms."""

from collections import Counter
from fractions import Fraction
from functools import cache

from tictactoe_lines import (
    Ends,
    add,
    best_play,
    end_of,
    free_cells,
    lines_of_play,
    never_losing,
    scored,
    take,
    won_at_all_costs,
)


def _first_free(board):
    return free_cells(board)[0]


def test_a_full_row_wins_for_its_owner():
    board = (1, 1, 1, 2, 2, 0, 0, 0, 0)
    assert end_of(board, 1) == Ends(1, 0, 0)
    assert end_of(board, 2) == Ends(0, 0, 1)
    assert end_of((1, 2, 1, 1, 2, 2, 2, 1, 1), 1) == Ends(0, 1, 0)
    assert end_of((1, 1, 0, 2, 2, 0, 0, 0, 0), 1) is None


def test_players_take_turns():
    board = take(take((0,) * 9, 4), 0)
    assert board == (2, 0, 0, 0, 1, 0, 0, 0, 0)


def test_probabilities_of_all_lines_of_play_add_up_to_one():
    for own in (1, 2):
        assert sum(add(lines_of_play(_first_free, own))) == 1


def test_all_255168_games_are_walked_where_both_sides_are_free():
    @cache
    def games(board):
        end = end_of(board, 1)
        return Counter([end]) if end is not None else sum((games(take(board, c)) for c in free_cells(board)), Counter())

    assert games((0,) * 9) == {Ends(1, 0, 0): 131_184, Ends(0, 0, 1): 77_904, Ends(0, 1, 0): 46_080}


def test_what_the_best_players_get_from_random_play():
    assert best_play(1, never_losing) == Ends(Fraction(191, 192), Fraction(1, 192), 0)
    assert best_play(2, never_losing) == Ends(Fraction(866, 945), Fraction(79, 945), 0)
    assert best_play(2, scored) == Ends(Fraction(881, 945), Fraction(19, 315), Fraction(1, 135))
    assert best_play(2, won_at_all_costs) == Ends(Fraction(887, 945), Fraction(4, 945), Fraction(2, 35))


def test_no_way_to_play_wins_more_than_the_ceiling():
    for own in (1, 2):
        assert add(lines_of_play(_first_free, own)).won < best_play(own, won_at_all_costs).won
