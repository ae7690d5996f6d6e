"""Trajectories into a spool, as a sink: what routers write to, and a server gets.

A trajectory is durable when the spool is synced (`flush`); the link sends it from there. A full spool raises `SpoolFullError`,
which routers take as a failure to be repeated: their buffers fill, and then requests wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from relayrl.data.arrow.arrow_writing import pieces
from relayrl.data.arrow.codec import encode_block
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.errors import SpoolFullError
from relayrl.runtime.remote.spool import Spool
from relayrl.sinks.buffered import checked_blocks
from relayrl.sinks.contract import TrajectorySink

_MAX_ROWS = 8192
"""Of one frame: a longer block is cut between trajectories."""
_MAX_FRAMES, _MAX_BYTES = 64, 8 << 20
"""Of one message."""


class SpoolSink(TrajectorySink):
    """Writes to a spool, which it does not own; `wake` is called when something can be sent."""

    def __init__(self, spool: Spool, wake: Callable[[], None], url: str) -> None:
        self._spool, self._wake, self._url = spool, wake, url
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        blocks = [part for block in checked_blocks(trajectories) for part in pieces(block, _MAX_ROWS)]
        messages = _together([frame for block in blocks for frame in frames_of([block])])
        with self._lock:  # all of them are taken, or none
            if len(messages) > 1 and not self._spool.has_room(sum(map(_num_bytes, messages))):
                raise SpoolFullError(f"{self._spool.num_bytes} bytes wait for {self._url}; is the server running?")
            for frames in messages:
                self._spool.append(frames)

    def flush(self) -> None:
        self._spool.sync()
        self._wake()

    def close(self) -> None:
        self.flush()


def frames_of(blocks: Sequence[TrajectoryBlock]) -> list[memoryview]:
    """The payload of one message: an Arrow stream for each block that holds anything."""
    return [memoryview(encode_block(block)) for block in blocks if len(block)]


def _together(frames: Sequence[memoryview]) -> list[list[memoryview]]:
    """Frames as messages: as few as fit, since a spool takes a message as a whole."""
    messages: list[list[memoryview]] = []
    for frame in frames:
        is_fitting = messages and len(messages[-1]) < _MAX_FRAMES and _num_bytes([*messages[-1], frame]) <= _MAX_BYTES
        if is_fitting:
            messages[-1].append(frame)
        else:
            messages.append([frame])
    return messages


def _num_bytes(frames: Sequence[memoryview]) -> int:
    return 64 + sum(len(frame) + 4 for frame in frames)
