"""Ctrl-C and SIGTERM during a run: answered at once.

    before the first update    once, the start-up ends and nothing is kept; twice, the process leaves at once
    during the run             once, it stops after the present update with its state saved; twice, the process leaves at once

What the process does while it leaves may hang as well (closing an environment): a third signal is the system's. Only the main
thread can take signals; elsewhere nothing is changed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from relayrl.errors import StoppedBySignal

EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StartInterrupted(StoppedBySignal, KeyboardInterrupt):
    """Somebody asked the run to stop before its first update."""


class LeaveAtOnce(StoppedBySignal, SystemExit):
    """Somebody asked twice."""


class Interrupt:
    """Takes the signals inside its `with` block. Until `begin`, the run is still being set up."""

    def __init__(self) -> None:
        self._is_requested = False
        self._has_begun = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def begin(self) -> None:
        """From now on the run asks `is_requested` after each update."""
        self._has_begun = True

    def is_requested(self) -> bool:
        """Whether the run should stop after the present update."""
        return self._is_requested

    def _take(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._is_requested:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            raise LeaveAtOnce(EXIT_CODE)
        self._is_requested = True
        if not self._has_begun:
            _say(f"{name}: the start-up ends; again: leave at once")
            raise StartInterrupted
        _say(f"{name}: the run stops after the present update and saves its state; again: leave at once")


def _say(line: str) -> None:
    """Print to standard error, from a signal handler that may have come in the middle of a print."""
    try:
        print(f"relayrl: {line}", file=sys.stderr, flush=True)
    except RuntimeError:  # Python's streams cannot be entered twice.
        os.write(2, f"relayrl: {line}\n".encode())
