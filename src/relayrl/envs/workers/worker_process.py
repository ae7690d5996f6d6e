"""What runs inside a worker process: a loop over some of the environments, stepped on its parent's messages.

The worker ends on its parent's message or when the parent is gone, even while an environment hangs. A crash leaves
a Python traceback in the fault log, a file that the parent reads; so does the signal that the parent sends to a worker that
does not answer.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.spawn import prepare
from typing import Any

from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.failures import EnvFailure, EnvFailureError
from relayrl.envs.recipes import EnvRecipe
from relayrl.envs.vector.env_buffers import BufferCarver, allocate_buffers
from relayrl.envs.vector.env_loop import EnvLoop
from relayrl.envs.vector.vectorise import build_loop
from relayrl.envs.workers import worker_messages as messages
from relayrl.errors import ConfigError, RelayRLError

DUMP_TRACEBACK = signal.SIGUSR1
_ORPHAN_GRACE_S = 2.0
_is_worker = False


def in_worker() -> bool:
    """Whether this process is a worker; a script that is imported here for its factory must not start workers again."""
    return _is_worker


def main(command_fd: int, reply_fd: int, memory_fd: int, fault_fd: int) -> None:
    """Serve the parent at the other end of the pipes until it is done with this worker."""
    global _is_worker
    _is_worker = True
    for fd in (command_fd, reply_fd, memory_fd, fault_fd):
        os.set_inheritable(fd, False)
    faulthandler.enable(fault_fd, all_threads=False)
    faulthandler.register(DUMP_TRACEBACK, fault_fd, all_threads=False)
    # A Ctrl-C is the parent's; with a handler, not ignored, for what the environments start would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    threading.Thread(target=_die_with_parent, args=(command_fd,), daemon=True).start()
    worker = _Worker(messages.Channel(command_fd, reply_fd), memory_fd)
    try:
        worker.serve()
    except (EOFError, BrokenPipeError):
        pass  # The parent is gone: nobody to answer to.
    finally:
        worker.close()


class _Worker:
    """The environments of this process, and the answers to what the parent asks of them."""

    def __init__(self, channel: messages.Channel, memory_fd: int) -> None:
        self._channel = channel
        self._memory_fd = memory_fd
        self._loop: EnvLoop[Any] | None = None

    def serve(self) -> None:
        """Answer message after message."""
        while True:
            code, payload = self._channel.receive()
            if code == messages.STEP and self._loop is not None:
                self._report(self._loop.step())
            elif code == messages.BUILD:
                self._build(payload)
            elif code == messages.QUIT or self._loop is None:
                return
            else:
                self._answer(self._loop, code, payload)

    def _answer(self, loop: EnvLoop[Any], code: bytes, payload: Any) -> None:
        if code == messages.RESET:
            self._report(loop.reset_selected())
        elif code == messages.RESTART:
            self._report(loop.restart_selected())
        elif code == messages.ATTACH:
            self._attach(loop, payload)
        elif code == messages.GET_STATE:
            self._channel.send(messages.VALUE, loop.get_state())
        elif code == messages.RATE:
            self._give(lambda: loop.performance_return(payload))
        elif code == messages.RELABEL:
            self._give(lambda: loop.relabel(*payload))
        elif code == messages.DRAW:
            self._give(lambda: loop.frames(payload))
        elif code == messages.FINAL_FRAMES:
            self._give(loop.final_frames)
        elif code == messages.SET_STATE:
            loop.set_state(payload)
            self._channel.send(messages.DONE)

    def _give(self, ask: Callable[[], Any]) -> None:
        """Answer with what an environment gives, or with its failure."""
        try:
            self._channel.send(messages.VALUE, ask())
        except EnvFailureError as error:
            self._channel.send(messages.FAILURES, [error.failure])

    def close(self) -> None:
        """Close the environments; one that cannot be closed says so on stderr, since nobody waits for an answer any more."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.close()
            except EnvFailureError as error:
                sys.stderr.write(error.failure.traceback)

    def _report(self, failures: list[EnvFailure]) -> None:
        if failures:
            self._channel.send(messages.FAILURES, failures)
        else:
            self._channel.send(messages.DONE)

    def _build(self, task: messages.BuildTask) -> None:
        try:
            if task.main_module:
                prepare(dict(task.main_module))
            recipe: EnvRecipe = pickle.loads(task.recipe)
            first = recipe.build()
            if isinstance(first, VectorEnvironment):
                first.close()
                raise ConfigError(f"{recipe.name} steps all environments in one call; set workers to 0")
            self._loop = build_loop(recipe, first, task.num_envs)
        except EnvFailureError as error:
            self._channel.send(messages.UNBUILT, error.failure)
        except RelayRLError as error:
            self._channel.send(messages.REFUSED, str(error))
        except BaseException as error:  # noqa: BLE001 - the seam to user code: whatever a factory raises is its failure
            self._channel.send(messages.UNBUILT, EnvFailure.of_exception(0, error, "building it"))
        else:
            self._channel.send(messages.VALUE, messages.BuiltEnvironments(self._loop.layout, self._loop.stateful))

    def _attach(self, loop: EnvLoop[Any], task: messages.AttachTask) -> None:
        memory = mmap.mmap(self._memory_fd, task.num_bytes)
        buffers = allocate_buffers(task.layout, task.num_envs, BufferCarver(memory))
        loop.attach(buffers.part(slice(task.first, task.last)), task.check)
        self._channel.send(messages.DONE)


def _die_with_parent(command_fd: int) -> None:
    """End the whole process group soon after the parent's end of the pipe is closed, whatever the environments are doing."""
    hangup = select.poll()
    hangup.register(command_fd, 0)  # No events asked for: only a hang-up or an error ends the wait.
    while not hangup.poll():
        pass
    time.sleep(_ORPHAN_GRACE_S)
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)
