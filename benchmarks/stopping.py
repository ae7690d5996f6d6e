"""A run that a benchmark stops."""

from __future__ import annotations

from collections.abc import Callable

from relayrl.engines.process.interrupts import Interrupt


class StopWhen(Interrupt):
    """Stops the run after the update at which `is_over()` is true; takes no signals unless it is entered."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def is_requested(self) -> bool:
        return self._is_over()
