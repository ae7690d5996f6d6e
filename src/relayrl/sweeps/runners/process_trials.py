"""Trials as plain processes of this machine, each in a session of its own: Ctrl-C reaches the sweep, which stops them in order.

A trial holds the reading end of a pipe whose writing end is ours alone. When we end, however, it reads the end of the file,
saves its state and leaves: a killed sweep leaves nothing behind that would go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from relayrl.compiled.usable_cores import num_cores
from relayrl.sweeps.runners.trial_runner import StartedTrial, TrialRunner
from relayrl.sweeps.sweep_owner import try_lock
from relayrl.sweeps.trial_jobs import TrialOrder

_MODULE = "relayrl.sweeps.runners.trial_process"
_THREADS = "RELAYRL_THREADS"


class ProcessRunner(TrialRunner):
    """Starts a Python process for each trial. The kernels of `num_at_once` of them share the cores, which changes no bit."""

    def __init__(self, num_at_once: int) -> None:
        self._environ = dict(os.environ)
        self._environ.setdefault(_THREADS, str(max(1, num_cores() // num_at_once)))

    def start(self, order: TrialOrder) -> StartedTrial:
        log = Path(order.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        Path(order.lock).parent.mkdir(parents=True, exist_ok=True)
        # The trial inherits the lock: it is held from the first to the last moment of the process.
        with log.open("ab") as file, Path(order.lock).open("a") as lock:
            try_lock(lock)
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once, which `how_it_ended` finds
            process.stdin.write(f"{order.to_json()}\n".encode())
            process.stdin.flush()
        return TrialProcess(process)


class TrialProcess(StartedTrial):
    """A trial's process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def how_it_ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        return (
            f"killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
        )

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.how_it_ended()
