"""Numbers that a thread draws ahead are those that the generator itself would have drawn, or are not used."""

from threading import Thread

import numpy as np
import pytest

from relayrl.compiled import loader
from relayrl.compiled.drawn_ahead import MIN_THREADS, DrawnAhead


@pytest.fixture(autouse=True)
def enough_threads():
    loader.set_num_threads(MIN_THREADS)
    yield
    loader.set_num_threads(None)


def draw(rng):
    return np.stack([rng.permutation(100), rng.permutation(100)])


def test_what_was_drawn_and_what_follows_are_the_generators_own():
    rng, other = np.random.default_rng(5), np.random.default_rng(5)
    rng.random(3, np.float32), other.random(3, np.float32)  # leaves half of a word behind
    ahead = DrawnAhead(draw, "order", rng)
    assert rng.bit_generator.state == other.bit_generator.state
    np.testing.assert_array_equal(ahead.take("order", rng), draw(other))
    assert rng.random() == other.random()


def test_it_is_not_used_for_anything_else():
    rng, other = np.random.default_rng(5), np.random.default_rng(5)
    assert DrawnAhead(draw, "order", rng).take("noise", rng) is None
    ahead = DrawnAhead(draw, "order", rng)
    rng.random(), other.random()
    assert ahead.take("order", rng) is None
    assert rng.random() == other.random()


def test_a_draw_that_fails_is_not_used(monkeypatch):
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    rng = np.random.default_rng(5)
    assert DrawnAhead(lambda copy: copy.random(-1), "order", rng).take("order", rng) is None


def test_without_a_thread_whoever_asks_draws(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refused)
    rng = np.random.default_rng(5)
    before = rng.bit_generator.state
    assert DrawnAhead(lambda copy: copy.random(3), 3, rng).take(3, rng) is None
    assert rng.bit_generator.state == before


def test_only_generators_that_can_be_copied_and_only_with_enough_threads():
    class OwnGenerator(np.random.Generator):
        pass

    assert DrawnAhead.is_possible(np.random.default_rng())
    assert not DrawnAhead.is_possible(OwnGenerator(np.random.PCG64()))
    assert not DrawnAhead.is_possible(np.random.Generator(np.random.MT19937()))
    loader.set_num_threads(MIN_THREADS - 1)
    assert not DrawnAhead.is_possible(np.random.default_rng())
