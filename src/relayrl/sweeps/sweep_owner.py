"""A process that works on a sweep, and whether it is still there.

Each holds the lock of a file in the sweep's directory, which the system releases however it ends. So after a kill, a
restart on the same machine goes on at once; for processes of other machines, leases end (`sweep_state.LEASE_S`).
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import TextIO

_FOLDER = "processes"


class SweepOwner:
    """This process, under a name of its own, until `close`."""

    def __init__(self, directory: Path) -> None:
        self.name = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._path = _lock_path(directory, self.name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO | None = self._path.open("a")
        _try_lock(self._file)

    def close(self) -> None:
        """Leave."""
        file, self._file = self._file, None
        if file is not None:
            self._path.unlink(missing_ok=True)
            file.close()


def is_dead(directory: Path, owner: str) -> bool:
    """Whether a process of this machine has ended; False where nobody can tell from here."""
    if owner.partition("/")[0] != socket.gethostname():
        return False
    try:
        with _lock_path(directory, owner).open("r+") as file:
            return _try_lock(file)
    except FileNotFoundError:  # its directory is another one
        return False


def _lock_path(directory: Path, owner: str) -> Path:
    return directory / _FOLDER / f"{owner.replace('/', '-')}.lock"


def _try_lock(file: TextIO) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
