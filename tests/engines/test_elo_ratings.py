"""Elo ratings: hand-computed updates, and errors that are the spread of the estimate."""

import math

import numpy as np
import pytest

from relayrl.engines.self_play.elo_ratings import K_FACTOR, EloRatings


def pair(rating=1200.0, other=1200.0):
    ratings = EloRatings()
    ratings.enter(0, rating)
    ratings.enter(1, other)
    return ratings


def test_what_one_gains_the_other_loses():
    ratings = pair()
    assert ratings.count(0, 1, 1.0) == K_FACTOR / 2
    assert (ratings.rating(0), ratings.rating(1)) == (1204.0, 1196.0)
    assert ratings.error(0) == ratings.error(1) == pytest.approx(4.0)  # K √(½ · ½)


def test_a_favourite_gains_little_and_a_draw_costs_it():
    ratings = pair(1600.0, 1200.0)
    assert ratings.count(0, 1, 1.0) == pytest.approx(K_FACTOR / 11)  # expected 10/11
    ratings = pair(1600.0, 1200.0)
    assert ratings.count(0, 1, 0.5) == pytest.approx(K_FACTOR * (0.5 - 10 / 11))
    assert ratings.rating(0) + ratings.rating(1) == pytest.approx(2800.0)


def test_a_copy_has_rating_and_errors_of_its_original_and_leaving_changes_nobody():
    ratings = pair()
    ratings.count(0, 1, 1.0)
    ratings.enter_copy(7, of=0)
    assert (ratings.rating(7), ratings.error(7)) == (1204.0, pytest.approx(4.0))
    before = ratings.rating(0), ratings.error(0)
    ratings.leave(1)
    assert (ratings.rating(0), ratings.error(0)) == before
    assert 1 not in ratings
    assert 7 in ratings


def test_the_error_is_the_spread_of_the_rating_around_the_true_one():
    """Three players 0, 100 and 250 apart, many games, many times: what the recursion says is what is seen."""
    rng = np.random.default_rng(0)
    truth = np.array([0.0, 100.0, 250.0])
    finals, errors = [], []
    for _ in range(150):
        ratings = EloRatings()
        for player in range(3):
            ratings.enter(player, 0.0)
        for _ in range(400):
            a, b = rng.permutation(3)[:2].tolist()
            wins = rng.random() < 1 / (1 + 10 ** ((truth[b] - truth[a]) / 400))
            ratings.count(a, b, float(wins))
        finals.append([ratings.rating(player) for player in range(3)])
        errors.append([ratings.error(player) for player in range(3)])
    spread = np.std(finals, axis=0)
    assert np.mean(finals, axis=0) == pytest.approx(truth - truth.mean(), abs=8.0)
    assert np.mean(errors, axis=0) == pytest.approx(spread, rel=0.2)


def test_ratings_go_on_from_their_state():
    ratings, other = pair(), EloRatings()
    ratings.count(0, 1, 1.0)
    other.load_state_dict(ratings.state_dict())
    for each in (ratings, other):
        each.count(1, 0, 0.5)
    assert other.rating(0) == ratings.rating(0)
    assert other.error(1) == ratings.error(1)
    assert math.isfinite(other.error(1))
