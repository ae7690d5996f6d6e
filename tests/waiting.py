"""Waiting in tests for what other threads and processes do; the only clock that tests read."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 120.0
"""Against hanging only: far more than anything here takes on a busy machine."""


def wait_until(is_so: Callable[[], object]) -> None:
    """Return when `is_so()` is true; `AssertionError` if that never comes."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > end_s:
            raise AssertionError(f"waited {DEADLINE_S} s in vain")
        time.sleep(0.002)
