"""A learning rate that waits at half of the run until a file appears; no third process may ever be here at once."""

import fcntl
import os
import time
from pathlib import Path

FOLDER = Path(os.environ.get("GATE", "/nowhere"))
CONCURRENCY, DEADLINE_S = 2, 100.0
_slots = []


def take_slot() -> None:
    """One of as many locks as may run at once, until this process ends; a file is left where there is none."""
    for number in range(CONCURRENCY):
        file = (FOLDER / f"slot-{number}").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        _slots.append(file)
        return
    (FOLDER / "exceeded").touch()


def gated_rate(share: float) -> float:
    """The rate at this share of the run."""
    if not _slots:
        take_slot()
    if share >= 0.5 and not (FOLDER / "open").exists():
        (FOLDER / f"waits-{os.getpid()}").touch()
        end_s = time.monotonic() + DEADLINE_S
        while not (FOLDER / "open").exists() and time.monotonic() < end_s:
            time.sleep(0.01)
    return 1.0e-3


def free_rate(share: float) -> float:
    """The same without a gate."""
    return 1.0e-3
