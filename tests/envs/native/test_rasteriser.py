"""Pictures: shapes cover the area they should, and every native environment can be drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from relayrl.data.trees import Array
from relayrl.envs import native
from relayrl.envs.native.rasteriser import PAPER, Canvas

BLACK = (0.0, 0.0, 0.0)


def covered(draw: Callable[[Canvas], None]) -> float:
    """The area that `draw` blackens, in units of a 4 × 4 world on 200 × 200 pixels."""
    canvas = Canvas(width=200, height=200, x_range=(-2.0, 2.0), y_bottom=-2.0)
    draw(canvas)
    pixels: Array = canvas.pixels()[..., 0]
    return float((PAPER[0] - pixels).sum() / PAPER[0] / 50**2)


@pytest.mark.parametrize(
    ("draw", "area"),
    [
        (lambda c: c.disc((0.13, -0.2), 0.7, BLACK), math.pi * 0.7**2),
        (lambda c: c.disc((2.0, 0.0), 0.5, BLACK), math.pi * 0.5**2 / 2),
        (lambda c: c.disc((9.0, 9.0), 0.5, BLACK), 0.0),
        (lambda c: c.disc((0.0, 0.0), 1.0, BLACK, opacity=0.25), math.pi / 4),
        (lambda c: c.line((-1.0, -0.5), (1.0, 0.5), 0.1, BLACK), math.hypot(2, 1) * 0.2 + math.pi * 0.1**2),
        (lambda c: c.box((0.1, 0.2), (1.0, 0.6), 0.7, BLACK), 0.6),
        (lambda c: c.convex_polygon([(-1.0, -1.0), (1.0, -1.0), (0.0, 1.0)], BLACK), 2.0),
        (lambda c: c.ground(lambda x: 0.5 * x - 1.0, BLACK), 4.0),
    ],
)
def test_shapes_cover_their_area(draw: Callable[[Canvas], None], area: float) -> None:
    assert covered(draw) == pytest.approx(area, rel=0.01, abs=1e-6)


def test_y_points_up_and_x_right() -> None:
    canvas = Canvas(width=40, height=40, x_range=(-1.0, 1.0), y_bottom=-1.0)
    canvas.disc((0.5, 0.5), 0.2, BLACK)
    dark = np.argwhere(canvas.pixels()[..., 0] < 50).mean(axis=0)
    np.testing.assert_allclose(dark, [9.5, 29.5], atol=0.2)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("name", native.names())
def test_every_environment_can_be_drawn_and_worlds_look_different(name: str, device: str) -> None:
    env = native.make(name, device=device)
    env.init_num_envs(2)
    env.reset(seed=1)
    first, second = env.render(0), env.render(1)
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape[2] == 3
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, env.render(0))
