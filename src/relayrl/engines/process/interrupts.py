"""Ctrl-C and SIGTERM during a run: answered at once.

    before the first update    once, the start-up ends and nothing is kept; twice, the process leaves at once
    during the run             once, it stops after the present update with its state saved; twice, the process leaves at once

Python runs a signal's handler between two instructions of the main thread, which may be in the middle of a long update in C. So
a thread watches as well, woken by the system on a signal: it prints the answer, and ends the process where the main thread has
not left within `LEAVE_GRACE_S`. Only the main thread can take signals; elsewhere nothing is changed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
from types import FrameType

from relayrl.errors import StoppedBySignal

EXIT_CODE = 130
LEAVE_GRACE_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_WATCHING = b"\0"
_watched_fds: set[int] = set()


class StartInterrupted(StoppedBySignal, KeyboardInterrupt):
    """Somebody asked the run to stop before its first update."""


class LeaveAtOnce(StoppedBySignal, SystemExit):
    """Somebody asked twice."""


class Interrupt:
    """Takes the signals inside its `with` block. Until `begin`, the run is still being set up."""

    def __init__(self) -> None:
        self._is_requested = False
        self._has_begun = False
        self._owner = os.getpid()
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._watch_signals()
            for number in _SIGNALS:
                self._undo.callback(signal.signal, number, signal.signal(number, self._take))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def begin(self) -> None:
        """From now on the run asks `is_requested` after each update."""
        self._has_begun = True

    def is_requested(self) -> bool:
        """Whether the run should stop after the present update."""
        return self._is_requested

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            _take_in_fork(number)
        elif self._is_requested:
            raise LeaveAtOnce(EXIT_CODE)
        else:
            self._is_requested = True
            if not self._has_begun:
                raise StartInterrupted

    def _watch_signals(self) -> None:
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        _forget_in_forks()
        _watched_fds.add(write_fd)
        before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(read_fd,), name="relayrl-signals", daemon=True)
        thread.start()
        for undo in (
            functools.partial(os.close, read_fd),
            functools.partial(os.close, write_fd),
            thread.join,
            functools.partial(os.write, write_fd, _STOP_WATCHING),
            functools.partial(_watched_fds.discard, write_fd),
            functools.partial(signal.set_wakeup_fd, before),
        ):
            self._undo.callback(undo)

    def _watch(self, read_fd: int) -> None:
        num_signals, wait_s = 0, None
        while select.select([read_fd], [], [], wait_s)[0]:
            byte = os.read(read_fd, 1)
            if byte == _STOP_WATCHING:
                return
            if byte[0] not in _SIGNALS:
                continue
            num_signals += 1
            if num_signals > 1:
                wait_s = LEAVE_GRACE_S
                what = "leaving"
            elif not self._has_begun:
                wait_s = LEAVE_GRACE_S
                what = "the start-up ends; again: leave at once"
            else:
                what = "the run stops after the present update and saves its state; again: leave at once"
            with contextlib.suppress(OSError, ValueError):  # a stream that is closed has no reader
                print(f"relayrl: {signal.Signals(byte[0]).name}: {what}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)


def _take_in_fork(number: int) -> None:
    """In a process that an environment forked, with a copy of the handler: a Ctrl-C, which reaches the whole process group, is
    the run's to answer; SIGTERM is meant for this process."""
    if number == signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


@functools.cache
def _forget_in_forks() -> None:
    """Signals of processes that an environment forks are not the run's: they share its pipe."""
    os.register_at_fork(after_in_child=lambda: _watched_fds and signal.set_wakeup_fd(-1))
