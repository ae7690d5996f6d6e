"""Curves as text: a canvas of braille dots, two by four of them in a character."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_white", "bright_black")
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800

Points = tuple[Sequence[float], Sequence[float]]


def plot(curves: Sequence[Points], width: int, height: int) -> list[Text]:
    """Lines of text, at most `height`, with the range of y on the left and of x below; empty where there is nothing."""
    from rich.text import Text

    drawn = [curve for curve in curves if curve[0]]
    if not drawn or height < 3 or width < 20:
        return []
    xs, ys = [x for curve in drawn for x in curve[0]], [y for curve in drawn for y in curve[1]]
    left, right, low, high = 0.0, max(*xs, 1.0), min(ys), max(ys)
    if low == high:
        low, high = low - 1, high + 1
    marks = [f"{high:,.4g}", f"{low:,.4g}"]
    margin = max(map(len, marks)) + 1
    columns, rows = width - margin - 1, height - 1
    cells = [[(_BLANK, "")] * columns for _ in range(rows)]
    for number, (x, y) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        for column, row in _pixels(x, y, (left, right, low, high), 2 * columns, 4 * rows):
            code, _ = cells[row // 4][column // 2]
            cells[row // 4][column // 2] = (code | _DOTS[column % 2][row % 4], colour)
    lines = []
    for number, line_of_cells in enumerate(cells):
        mark = marks[0] if number == 0 else marks[1] if number == rows - 1 else ""
        line = Text(f"{mark:>{margin - 1}} │", style="dim", no_wrap=True)
        for code, colour in line_of_cells:
            line.append(chr(code) if code != _BLANK else " ", style=colour)
        lines.append(line)
    end = f"{right:,.0f} steps"
    lines.append(Text(f"{'0':>{margin + 2}}{end:>{max(0, columns - 1)}}", style="dim", no_wrap=True))
    return lines


def _pixels(
    x: Sequence[float], y: Sequence[float], box: tuple[float, float, float, float], width: int, height: int
) -> set[tuple[int, int]]:
    """The dots of a line through the points, the first row on top."""
    left, right, low, high = box
    at = [
        (round((one - left) / (right - left) * (width - 1)), round((high - other) / (high - low) * (height - 1)))
        for one, other in zip(x, y, strict=True)
    ]
    dots = set(at)
    for (x0, y0), (x1, y1) in itertools.pairwise(at):
        steps = max(abs(x1 - x0), abs(y1 - y0))
        dots |= {(x0 + (x1 - x0) * i // steps, y0 + (y1 - y0) * i // steps) for i in range(1, steps)}
    return dots
