"""What a worker and its parent say to each other: one byte, and rarely something after it.

Observations, actions, rewards and flags never pass here; they lie in shared memory. Payloads are pickled, which is safe
because a message can only come over an anonymous pipe from the process at its other end: our own child, or our own parent.
"""

from __future__ import annotations

import os
import pickle
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.vector.env_buffers import EnvLayout

STEP, RESET, RESTART, QUIT, GET_STATE, FINAL_FRAMES = b"s", b"r", b"x", b"q", b"g", b"f"
BUILD, ATTACH, SET_STATE, RATE, DRAW, RELABEL = b"B", b"A", b"P", b"R", b"D", b"G"
DONE = b"."
FAILURES, UNBUILT, VALUE, REFUSED = b"F", b"U", b"V", b"E"
_WITH_PAYLOAD = frozenset((BUILD, ATTACH, SET_STATE, RATE, DRAW, RELABEL, FAILURES, UNBUILT, VALUE, REFUSED))

_LENGTH_BYTES = 8
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Build `num_envs` environments by a pickled `EnvRecipe`; the answer is a `BuiltEnvironments`.

    `main_module` is what `multiprocessing.spawn.prepare` needs to import the parent's script, for factories defined there.
    """

    recipe: bytes
    num_envs: int
    main_module: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BuiltEnvironments:
    """What a worker's environments look like."""

    layout: EnvLayout
    stateful: bool


@dataclass(frozen=True, slots=True)
class AttachTask:
    """Use rows `first` to `last` (exclusive) of buffers for `num_envs` environments in the shared memory."""

    layout: EnvLayout
    num_envs: int
    first: int
    last: int
    num_bytes: int
    check: ObservationCheck


AWAKE_LOOKS = 25
"""About 25 µs of looking: less than waking up costs."""


def stay_awake_for(poller: select.poll) -> list[tuple[int, int]]:
    """Look for a message for a moment before the caller blocks: waking a core that sleeps takes longer than most steps.

    Whoever else wants the core gets it in between.
    """
    ready: list[tuple[int, int]] = []
    for _ in range(AWAKE_LOOKS):
        ready = poller.poll(0)
        if ready:
            break
        os.sched_yield()
    return ready


class Channel:
    """Messages over a pair of pipe ends, which it owns."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._poller = select.poll()
        self._poller.register(read_fd, select.POLLIN)

    def send(self, code: bytes, payload: Any = None) -> None:
        """Send a code, with its payload where it has one. Raises `BrokenPipeError` when nobody is left to read."""
        if code not in _WITH_PAYLOAD:
            os.write(self._write_fd, code)
            return
        body = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        rest = memoryview(code + len(body).to_bytes(_LENGTH_BYTES) + body)
        while rest:
            rest = rest[os.write(self._write_fd, rest) :]

    def receive(self) -> tuple[bytes, Any]:
        """The next code and its payload; `EOFError` when the other end is closed."""
        stay_awake_for(self._poller)
        code = os.read(self.read_fd, 1)
        if code in _WITH_PAYLOAD:
            return code, pickle.loads(self._read_exactly(int.from_bytes(self._read_exactly(_LENGTH_BYTES))))
        if not code:
            raise EOFError("the other end of the pipe is closed")
        return code, None

    def close(self) -> None:
        """Close both ends; the other side sees the end of the file."""
        os.close(self.read_fd)
        os.close(self._write_fd)

    def _read_exactly(self, num_bytes: int) -> bytes:
        parts = []
        while num_bytes > 0:
            part = os.read(self.read_fd, min(num_bytes, _READ_BYTES))
            if not part:
                raise EOFError("the other end of the pipe was closed in the middle of a message")
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)
