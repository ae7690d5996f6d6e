"""Pictures made smaller by the mean of the area that each new pixel covers, as OpenCV's `INTER_AREA` does it, to the bit.

Every new pixel is a weighted sum of a few old ones, first along rows, then along columns, in float32 and in this order: so the
numbers are those of `ResizeObservation` and `AtariPreprocessing` of Gymnasium, without OpenCV. Not its job: larger pictures.
"""

from __future__ import annotations

import math

import numpy as np

from relayrl.data.trees import Array

_NEGLIGIBLE = 1e-3
"""OpenCV ignores a pixel of which less than this is covered."""


class AreaResize:
    """From `[..., H, W]` or `[..., H, W, C]` uint8 to the same with other heights and widths."""

    def __init__(self, old: tuple[int, int], new: tuple[int, int]) -> None:
        if new[0] > old[0] or new[1] > old[1]:
            raise ValueError(f"{old[0]}x{old[1]} pixels cannot be enlarged to {new[0]}x{new[1]}, only made smaller")
        self._rows, self._columns = _Taps(old[0], new[0]), _Taps(old[1], new[1])
        # OpenCV averages 2x2 pixels in integers, which rounds halves up; everywhere else they go to the even number.
        self._rounds_up = old == (2 * new[0], 2 * new[1])

    def __call__(self, pictures: Array, *, has_channels: bool) -> Array:
        """All pictures of an array at once."""
        axis = pictures.ndim - (3 if has_channels else 2)
        wide = self._columns.applied(pictures.astype(np.float32), axis + 1)
        small = self._rows.applied(wide, axis)
        return (np.floor(small + 0.5) if self._rounds_up else np.rint(small)).astype(np.uint8)


class _Taps:
    """Which of `old` pixels make each of `new` ones, with their weights: `[taps, new]`, missing taps have weight 0."""

    def __init__(self, old: int, new: int) -> None:
        found = [_covered(i, old, new) for i in range(new)]
        count = max(len(taps) for taps in found)
        padded = [taps + [(0, 0.0)] * (count - len(taps)) for taps in found]
        self._index = [np.array([taps[k][0] for taps in padded]) for k in range(count)]
        self._weight = [np.array([taps[k][1] for taps in padded], np.float32) for k in range(count)]

    def applied(self, values: Array, axis: int) -> Array:
        """The weighted sums along an axis."""
        after = (1,) * (values.ndim - axis - 1)
        total: Array = values.take(self._index[0], axis) * self._weight[0].reshape(-1, *after)
        for index, weight in zip(self._index[1:], self._weight[1:], strict=True):
            total += values.take(index, axis) * weight.reshape(-1, *after)
        return total


def _covered(i: int, old: int, new: int) -> list[tuple[int, float]]:
    """Old pixels under new pixel `i`, and how much of it each covers."""
    scale = old / new
    begin, end = i * scale, (i + 1) * scale
    cell = min(scale, old - begin)
    last = min(math.floor(end), old - 1)
    first = min(math.ceil(begin), last)
    taps = [(first - 1, (first - begin) / cell)] if first - begin > _NEGLIGIBLE else []
    taps += [(pixel, 1.0 / cell) for pixel in range(first, last)]
    if end - last > _NEGLIGIBLE:
        taps.append((last, min(min(end - last, 1.0), cell) / cell))
    return taps
