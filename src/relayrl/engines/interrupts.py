"""Ctrl-C and SIGTERM during a run: once, it stops after the present update with its state saved; twice, it stops at once.

Only the main thread can take signals; elsewhere nothing is changed.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Takes the signals inside its `with` block."""

    def __init__(self) -> None:
        self._is_requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_requested(self) -> bool:
        """Whether the run should stop after the present update."""
        return self._is_requested

    def _take(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_requested:
            sys.exit(EXIT_CODE)
        self._is_requested = True
