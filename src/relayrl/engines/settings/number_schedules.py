"""Schedules that need no code: `linear(0.005, 1e-05)` moves a hyper-parameter from the first number to the second."""

from __future__ import annotations

import re
from collections.abc import Callable

_NUMBER = r"\s*([-+0-9.eE]+)\s*"
_LINEAR = re.compile(rf"linear\({_NUMBER},{_NUMBER}\)")


def linear(first: float, last: float) -> str:
    """A setting that says so."""
    return f"linear({first:g}, {last:g})"


def built_in_schedule(text: str) -> Callable[[float], float] | None:
    """A function of the share of the run that is over; None where the setting names code."""
    found = _LINEAR.fullmatch(text.strip())
    if found is None:
        return None
    first, last = float(found[1]), float(found[2])
    return lambda progress: first + (last - first) * progress
