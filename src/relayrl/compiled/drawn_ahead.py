"""Random numbers drawn by a thread before anybody asks for them, while kernels keep the other cores busy.

No two threads can draw from one generator, so that drawing is what stays behind when everything else is shared out. A copy of
the generator draws; the generator itself is always where its owner left it, in a checkpoint too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Thread
from typing import Any

import numpy as np

from relayrl.compiled.loader import num_threads

MIN_THREADS = 4
"""Where there are fewer, the thread that draws takes more from the kernels than it saves."""
Array = np.ndarray[Any, np.dtype[Any]]


class DrawnAhead:
    """What `draw` makes of a generator that goes on from where `rng` is; `purpose` says what is drawn, and how much of it."""

    def __init__(
        self, draw: Callable[[np.random.Generator], Array | None], purpose: Hashable, rng: np.random.Generator
    ) -> None:
        """Begins to draw; `is_possible(rng)` must hold."""
        self._own_draw, self._purpose = draw, purpose
        self._before = rng.bit_generator.state
        self._after: Any = None
        self._drawn: Array | None = None
        self._thread: Thread | None = Thread(target=self._draw, name="relayrl-drawn-ahead")
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left: whoever asks draws then
            self._thread = None

    @staticmethod
    def is_possible(rng: np.random.Generator) -> bool:
        """Whether there is a core for it, and the generator is one that can be copied."""
        return (
            num_threads() >= MIN_THREADS
            and type(rng) is np.random.Generator
            and type(rng.bit_generator) is np.random.PCG64
        )

    def _draw(self) -> None:
        copy = np.random.Generator(np.random.PCG64(0))
        copy.bit_generator.state = self._before
        self._drawn = self._own_draw(copy)
        self._after = copy.bit_generator.state

    def take(self, purpose: Hashable, rng: np.random.Generator) -> Array | None:
        """What was drawn, with `rng` behind it; None for another purpose, or where `rng` is not where the copy began."""
        if self._thread is not None:
            self._thread.join()
        if self._after is None or purpose != self._purpose or rng.bit_generator.state != self._before:
            return None
        rng.bit_generator.state = self._after
        return self._drawn
