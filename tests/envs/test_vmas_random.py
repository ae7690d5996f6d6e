"""The stream that VMAS draws from, in place of the process's generators."""

import random

import numpy as np
import pytest
import torch

from relayrl.envs.adapters.vmas_random import VmasStream


def draw(normals: int) -> list[float]:
    """From the global generators: NumPy's normal numbers come in pairs, of which it keeps the second."""
    numbers = [np.random.rand(), *np.random.randn(normals)] if normals >= 0 else []  # noqa: NPY002
    return [*map(float, numbers), float(torch.rand(())), random.random()]


def drop_kept_normal() -> None:
    name, keys, place, *_ = np.random.get_state()  # noqa: NPY002
    np.random.set_state((name, keys, place, 0, 0.0))  # noqa: NPY002


def seed_process(normals: int) -> None:
    np.random.seed(7)  # noqa: NPY002 - the generator that VMAS uses
    random.seed(7)
    torch.manual_seed(7)
    draw(normals)


@pytest.mark.parametrize("kept_outside", [False, True])
def test_draws_in_place_go_on_where_the_stream_was_and_leave_the_process_alone(kept_outside):
    outside = 3 if kept_outside else 2
    counts = (0, 1, -1, 2, 3, -1, 1, 0, 5)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    torch.manual_seed(1)
    expected = []
    for count in counts:
        expected.append(draw(count))
        drop_kept_normal()
    seed_process(outside)
    expected_outside = draw(2)

    stream = VmasStream("cpu", [torch.get_rng_state(), np.random.get_state(), random.getstate()])  # noqa: NPY002
    stream.seed(1)
    seed_process(outside)
    drawn = []
    for count in counts:
        with stream.in_place():
            drawn.append(draw(count))
    assert drawn == expected
    assert draw(2) == expected_outside


def test_both_ways_draw_from_one_stream():
    shared = [torch.get_rng_state(), np.random.get_state(), random.getstate()]  # noqa: NPY002
    stream = VmasStream("cpu", shared)

    def drawn_by_vmas() -> list[float]:
        torch.set_rng_state(shared[0])
        np.random.set_state(shared[1])  # noqa: NPY002
        random.setstate(shared[2])
        numbers = draw(1)
        shared[:] = [torch.get_rng_state(), np.random.get_state(), random.getstate()]  # noqa: NPY002
        return numbers

    def drawn(ways: str) -> list[list[float]]:
        stream.seed(3)
        rows = []
        for way in ways:
            with stream.in_place() if way == "p" else stream.in_use():
                rows.append(draw(1) if way == "p" else drawn_by_vmas())
        return rows

    assert drawn("pppp") == drawn("uuuu") == drawn("pupu") == drawn("uupp")


def test_the_process_is_left_alone_after_an_error():
    stream = VmasStream("cpu", [])
    seed_process(1)
    expected = draw(1)
    seed_process(1)
    with pytest.raises(ZeroDivisionError), stream.in_place():
        _fail_after_drawing()
    assert draw(1) == expected


def _fail_after_drawing() -> None:
    draw(1)
    raise ZeroDivisionError
