"""Jobs in forked processes, several at a time, for what they leave on the disk: compiled kernels.

A forked process has this one's modules at once, but none of its threads, and must not touch the GPU. It ends without running
what this process runs at its end. The caller looks for what was left, and does a job again where nothing was: there the error
is raised that ended the process.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence

NUMBER_BYTES = 2
DEADLINE_S = 60.0
"""Processes that are not done by then, such as one that waits for a lock of a thread that it does not have, are killed."""
POLL_S = 0.002


def do_in_forks(jobs: Sequence[Callable[[], object]], num_processes: int, deadline_s: float = DEADLINE_S) -> int:
    """Do the jobs, begun in their order; gives how many processes could not begin, failed or were late."""
    if len(jobs) < 2 or num_processes < 2:
        return 0
    numbers, given = os.pipe()  # each process takes the number of a job whenever it is free
    os.write(given, b"".join(i.to_bytes(NUMBER_BYTES) for i in range(len(jobs))))
    os.close(given)
    children: set[int] = set()
    num_processes = min(num_processes, len(jobs))
    try:
        for _ in range(num_processes):
            child = _forked(numbers, jobs)
            if child is not None:
                children.add(child)
        num_missing = num_processes - len(children)
        return num_missing + _ended(children, time.monotonic() + deadline_s)
    finally:
        os.close(numbers)
        for child in children:  # late, or of a caller who was interrupted
            os.kill(child, signal.SIGKILL)
            _status(child, 0)


def _forked(numbers: int, jobs: Sequence[Callable[[], object]]) -> int | None:
    """The process, or None where the system has no memory or no place for one."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads are not forked is known here
        try:
            child = os.fork()
        except OSError:
            return None
    if child:
        return child
    status = 1
    try:
        gc.disable()  # nothing of the GPU's may be freed here
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while os.getppid() == parent and (number := os.read(numbers, NUMBER_BYTES)):
            jobs[int.from_bytes(number)]()
        status = 0
    finally:
        os._exit(status)


def _ended(children: set[int], deadline: float) -> int:
    """Wait for processes, and take those that ended out of the set; gives how many failed or are late."""
    num_failed = 0
    while children and time.monotonic() < deadline:
        for child in list(children):
            status = _status(child, os.WNOHANG)
            if status is not None:
                children.remove(child)
                num_failed += status != 0
        time.sleep(POLL_S)
    return num_failed + len(children)


def _status(child: int, options: int) -> int | None:
    """How a process ended; None where it goes on. Where the program ignores SIGCHLD nobody keeps how: it counts as failed."""
    try:
        pid, status = os.waitpid(child, options)
    except ChildProcessError:
        return 1
    return status if pid else None
