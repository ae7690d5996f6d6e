"""A small rasteriser: antialiased discs, lines, boxes and polygons on a NumPy canvas, in world coordinates.

Every shape is a signed distance in pixels (negative inside); a pixel's coverage is `½ − distance`, clipped to [0, 1], which is
exact to a few percent for shapes larger than a pixel. Knows nothing about environments, files or animation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from relayrl.data.trees import Array

Colour: TypeAlias = tuple[float, float, float]
Point: TypeAlias = tuple[float, float]

PAPER: Colour = (250, 250, 247)
INK: Colour = (44, 49, 58)
GREY: Colour = (176, 180, 186)
PALE: Colour = (226, 228, 230)
RED: Colour = (206, 76, 70)
GREEN: Colour = (66, 150, 92)
BLUE: Colour = (62, 108, 180)
SAND: Colour = (205, 152, 96)


class Canvas:
    """Pixels `[H, W, 3]` over the world's rectangle that begins at `(x_range[0], y_bottom)`; y points up."""

    def __init__(self, *, width: int, height: int, x_range: Point, y_bottom: float) -> None:
        self._pixels = np.empty((height, width, 3))
        self._pixels[:] = PAPER
        self.scale = width / (x_range[1] - x_range[0])
        """Pixels per unit of the world."""
        self._left, self._bottom = x_range[0], y_bottom

    def pixels(self) -> Array:
        """`[H, W, 3]` uint8."""
        return np.asarray(np.rint(self._pixels), np.uint8)

    def disc(
        self, centre: Point, radius: float, fill: Colour, *, outline: Colour | None = None, opacity: float = 1.0
    ) -> None:
        """A filled circle, with a line around it where `outline` is given."""
        x, y = self._to_pixels(centre)
        r = radius * self.scale

        def distance(xs: Array, ys: Array) -> Array:
            return np.hypot(xs - x, ys - y) - r

        box = (x - r, y - r, x + r, y + r)
        self._paint(box, distance, fill, opacity)
        if outline is not None:
            self._paint(box, lambda xs, ys: np.abs(distance(xs, ys)) - 0.9, outline, opacity)

    def line(self, start: Point, end: Point, half_width: float, colour: Colour) -> None:
        """A straight line with round ends."""
        (x0, y0), (x1, y1) = self._to_pixels(start), self._to_pixels(end)
        r = half_width * self.scale
        length_squared = max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-12)

        def distance(xs: Array, ys: Array) -> Array:
            along = np.clip(((xs - x0) * (x1 - x0) + (ys - y0) * (y1 - y0)) / length_squared, 0.0, 1.0)
            return np.hypot(xs - x0 - along * (x1 - x0), ys - y0 - along * (y1 - y0)) - r

        self._paint((min(x0, x1) - r, min(y0, y1) - r, max(x0, x1) + r, max(y0, y1) + r), distance, colour)

    def box(
        self, centre: Point, size: Point, angle: float, colour: Colour, *, rounding: float = 0.0, opacity: float = 1.0
    ) -> None:
        """A rectangle turned by `angle` (counter-clockwise), its corners rounded off by `rounding`."""
        x, y = self._to_pixels(centre)
        r = rounding * self.scale
        half_x, half_y = size[0] / 2 * self.scale - r, size[1] / 2 * self.scale - r
        cos, sin = math.cos(angle), -math.sin(angle)
        reach = math.hypot(half_x, half_y) + r

        def distance(xs: Array, ys: Array) -> Array:
            across = np.abs((xs - x) * cos + (ys - y) * sin) - half_x
            up = np.abs((ys - y) * cos - (xs - x) * sin) - half_y
            outside = np.hypot(np.maximum(across, 0), np.maximum(up, 0))
            return outside + np.minimum(np.maximum(across, up), 0) - r

        self._paint((x - reach, y - reach, x + reach, y + reach), distance, colour, opacity)

    def convex_polygon(self, corners: Sequence[Point], colour: Colour) -> None:
        """A filled convex polygon; corners counter-clockwise."""
        points = np.array([self._to_pixels(corner) for corner in corners])
        edges = np.roll(points, -1, axis=0) - points
        # counter-clockwise in the world is clockwise on the canvas, where y points down
        normals = np.stack([edges[:, 1], -edges[:, 0]], axis=1) / np.hypot(edges[:, 0], edges[:, 1])[:, None]

        def distance(xs: Array, ys: Array) -> Array:
            sides = [(xs - x) * -nx + (ys - y) * -ny for (x, y), (nx, ny) in zip(points, normals, strict=True)]
            return np.asarray(np.maximum.reduce(sides))

        (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
        self._paint((left, top, right, bottom), distance, colour)

    def ground(self, height_at: Callable[[Array], Array], colour: Colour) -> None:
        """Everything under a curve `y = height_at(x)`."""
        canvas_height, width = self._pixels.shape[:2]

        def distance(xs: Array, ys: Array) -> Array:
            x = xs / self.scale + self._left
            curve = canvas_height - (height_at(x) - self._bottom) * self.scale
            slope = np.gradient(curve, axis=-1) if width > 1 else np.zeros_like(curve)
            return (curve - ys) / np.hypot(1.0, slope)

        self._paint((0.0, 0.0, float(width), float(canvas_height)), distance, colour)

    def _to_pixels(self, point: Point) -> Point:
        return (
            (float(point[0]) - self._left) * self.scale,
            self._pixels.shape[0] - (float(point[1]) - self._bottom) * self.scale,
        )

    def _paint(
        self,
        box: tuple[float, float, float, float],
        distance: Callable[[Array, Array], Array],
        colour: Colour,
        opacity: float = 1.0,
    ) -> None:
        """Blend `colour` over the pixels that lie inside a shape, looking only at those inside its bounding box."""
        height, width = self._pixels.shape[:2]
        left, right = (int(np.clip(edge, 0, width)) for edge in (math.floor(box[0]) - 1, math.ceil(box[2]) + 1))
        top, bottom = (int(np.clip(edge, 0, height)) for edge in (math.floor(box[1]) - 1, math.ceil(box[3]) + 1))
        if left >= right or top >= bottom:
            return
        xs = np.arange(left, right)[None, :] + 0.5
        ys = np.arange(top, bottom)[:, None] + 0.5
        coverage = opacity * np.clip(0.5 - distance(xs, ys), 0.0, 1.0)[..., None]
        region = self._pixels[top:bottom, left:right]
        region += coverage * (np.array(colour) - region)
