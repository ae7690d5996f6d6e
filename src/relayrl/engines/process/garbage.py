"""Python's garbage collection kept off objects that live as long as the run.

Importing torch makes half a million of them, and each collection meanwhile walks all that are there: a fifth of the import's
time. Counted references free everything else as ever; cycles that become garbage are collected, only later.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No collections inside; what was made there counts as old afterwards, so that the next one does not walk it either."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        with living_set_aside():
            pass
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def living_set_aside() -> Iterator[None]:
    """Collections inside walk only what was made there. A process that has set objects aside itself is left alone."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
