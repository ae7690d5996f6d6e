"""One worker process as its parent sees it: started, spoken to, found dead, ended.

Nothing here is inherited by accident and nothing needs unlinking: pipes, shared memory and fault log are anonymous files
that the worker is handed when it starts and that vanish with the last process that holds them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from relayrl.envs.workers import worker_messages as messages
from relayrl.envs.workers.worker_process import DUMP_TRACEBACK

logger = logging.getLogger(__name__)

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from relayrl.envs.workers.worker_process import main; main(*map(int, sys.argv[2:]))"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GOOD_END = "exited with code 0"
_DUMP_WAIT_S = 0.5
_EXIT_WAIT_S = 1.0
_REAP_WAIT_S = 5.0
_FAULT_LOG_BYTES = 1 << 16


def anonymous_file(name: str) -> int:
    """A file without a name in the file system, in memory where the system can; the caller owns the descriptor."""
    create = getattr(os, "memfd_create", None)  # Linux
    if create is not None:
        return int(create(name))
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class WorkerLink:
    """A running worker that owns environments `first` to `last` (exclusive)."""

    def __init__(self, first: int, last: int, memory_fd: int) -> None:
        self.first = first
        self.last = last
        self.alive = True
        self._is_reaped = False
        self._fault_fd = anonymous_file("relayrl-worker-faults")
        command_read, command_write = os.pipe()
        reply_read, reply_write = os.pipe()
        self._channel = messages.Channel(reply_read, command_write)
        try:
            self._process = _start_process((command_read, reply_write, memory_fd, self._fault_fd))
        except OSError:
            self._channel.close()
            os.close(self._fault_fd)
            raise
        finally:
            os.close(command_read)
            os.close(reply_write)

    @property
    def reply_fd(self) -> int:
        """Readable when the worker has answered or is gone."""
        return self._channel.read_fd

    @property
    def envs(self) -> range:
        return range(self.first, self.last)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def send(self, code: bytes, payload: Any = None) -> bool:
        """Send a message; False when the worker is gone."""
        try:
            self._channel.send(code, payload)
        except BrokenPipeError:
            self.alive = False
        return self.alive

    def receive(self) -> tuple[bytes, Any] | None:
        """The worker's answer, for which it must be readable; None when the worker is gone."""
        try:
            return self._channel.receive()
        except EOFError:
            self.alive = False
            return None

    def has_exited(self) -> bool:
        """Whether the process has ended; its pipe may outlive it in processes that it has started."""
        return self._process.poll() is not None

    def dump_traceback(self) -> None:
        """Have a worker that does not answer write where it is to its fault log."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(DUMP_TRACEBACK)
        deadline_s = time.monotonic() + _DUMP_WAIT_S
        while not self.fault_log() and not self.has_exited() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def fault_log(self) -> str:
        """What a crash or `dump_traceback` left behind."""
        return os.pread(self._fault_fd, _FAULT_LOG_BYTES, 0).decode(errors="replace")

    def how_it_ended(self) -> str:
        """How a worker whose pipe is closed came to its end, in words; one that lingers on is ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_EXIT_WAIT_S)
            self.kill()
            return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self.kill()
        return "closed its pipe without ending"

    def kill(self) -> None:
        """End the worker and everything that it started."""
        self.alive = False
        if not self._is_reaped:
            # Once only: later, the number may belong to someone else.
            self._is_reaped = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_REAP_WAIT_S)

    def close(self) -> None:
        """End the worker if it has not ended, and release what the parent holds of it."""
        self.kill()
        self._channel.close()
        os.close(self._fault_fd)


def _start_process(handed_over: Sequence[int]) -> subprocess.Popen[bytes]:
    """A new interpreter, never a fork of this one: the parent may hold threads and locks that a fork would break.

    `-P` keeps the current directory off its path until the parent's path is set, whatever files lie there. It has a process
    group of its own, so that a Ctrl-C reaches the parent alone and what the environments start ends with them.
    """
    path = [str(entry) for entry in sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, json.dumps(path), *map(str, handed_over)],
        stdin=subprocess.DEVNULL,
        pass_fds=handed_over,
        env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ},
        start_new_session=True,
    )


def stop_links(links: Sequence[WorkerLink], grace_s: float) -> None:
    """Ask the workers to end, give them `grace_s` together to close their environments, and end those that have not."""
    for link in links:
        if link.alive:
            link.send(messages.QUIT)
    deadline_s = time.monotonic() + grace_s
    for link in links:
        while link.alive and not link.has_exited() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        if link.alive:
            _warn_of_a_bad_end(link, grace_s)
        link.close()


def _warn_of_a_bad_end(link: WorkerLink, grace_s: float) -> None:
    """A warning, for the results are whole; an environment that crashes or hangs in `close()` is still to be known of."""
    if not link.has_exited():
        link.dump_traceback()
        how = f"was stopped: it was not done {grace_s:g} s after it was asked to close its environments"
    else:
        how = link.how_it_ended()
        if how == GOOD_END:
            return
        how = f"{how} when it was asked to close its environments"
    log = link.fault_log()
    logger.warning("a worker process %s%s", how, f"\n--- traceback of the environment ---\n{log}" if log else "")
