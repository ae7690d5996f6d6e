"""A process that works on a sweep, and whether it is still there.

Each holds the lock of a file in the sweep's directory, which the system releases however it ends. So after a kill, a
restart on the same machine goes on at once; for processes of other machines, leases end (`sweep_state.LEASE_S`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

_FOLDER = "processes"
_WAIT_S = 0.02


class SweepOwner:
    """This process, under a name of its own, until `close`."""

    def __init__(self, directory: Path) -> None:
        self.name = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._path = _lock_path(directory, self.name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO | None = self._path.open("a")
        try_lock(self._file)

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
    path = _lock_path(directory, owner)
    return path.exists() and not is_locked(path)  # without the file, its directory is another one


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds the lock of a file."""
    try:
        with path.open("r+") as file:
            return not try_lock(file)
    except FileNotFoundError:
        return False


def _lock_path(directory: Path, owner: str) -> Path:
    return directory / _FOLDER / f"{owner.replace('/', '-')}.lock"


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Wait until no other process of this machine is inside: for files that all of them write."""
    path = directory / _FOLDER / "files.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while not try_lock(file):
            time.sleep(_WAIT_S)
        yield


def try_lock(file: IO[Any]) -> bool:
    """Take the lock of a file, which whoever inherits the file holds as well; False where another has it."""
    try:
        import fcntl
    except ImportError:  # where there are no locks, there is one process
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
