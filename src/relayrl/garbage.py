"""Python's garbage collection kept off objects that live as long as the run.

Importing torch makes half a million of them, and each collection meanwhile walks all that are there: a fifth of the import's
time. Counted references free everything else as ever; cycles that become garbage are collected, only later.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_counting = threading.Lock()
_num_open = 0
_is_ours = False


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
    """Collections inside walk only what was made there. Any number may be open at once, in any threads: the first sets aside
    and the last ends it. A process that has set objects aside itself is left alone."""
    global _num_open, _is_ours
    with _counting:
        if _num_open == 0:
            _is_ours = gc.get_freeze_count() == 0
            if _is_ours:
                gc.freeze()
        _num_open += 1
    try:
        yield
    finally:
        with _counting:
            _num_open -= 1
            if _num_open == 0 and _is_ours:
                gc.unfreeze()
