"""ZeroMQ sockets as both ends use them: options that bound them, addresses, frames in and out.

Small frames are copied, which is cheaper and lets go of the buffer that they share with others; large ones are not.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from functools import cache

import zmq

from relayrl.errors import ConfigError
from relayrl.transport.messages import Bytes

ZERO_COPY_BYTES = 16 << 10
"""From this size on, frames are not copied."""
MORE, NOBLOCK = int(zmq.SNDMORE), int(zmq.NOBLOCK)
"""Numbers: pyzmq takes several times as long with members of its enums."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""

Socket = zmq.Socket[bytes]


@cache
def keep_freed_memory() -> None:
    """Have the C library keep what large messages leave, up to 64 MiB, for the next ones.

    glibc gives it back to the system when a message is let go, and the next one pays for a page fault every 4 KiB: as much
    again as receiving it. Other C libraries stay as they are.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, 32 << 20)
        set_option(_M_TRIM_THRESHOLD, 64 << 20)


def milliseconds(seconds: float) -> int:
    """For ZeroMQ's time-outs: never 0 (at once) for a little, never negative (for ever)."""
    return max(1, int(seconds * 1000)) if seconds > 0.0 else 0


def bind_to(opened: Socket, address: str) -> str:
    """Bind, and give the address with its real port."""
    if "[" in address:
        opened.set(zmq.IPV6, 1)
    try:
        opened.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"cannot bind to {address!r}: {error.strerror}; write tcp://HOST:PORT, with port 0 for any free one"
        ) from error
    return opened.get_string(zmq.LAST_ENDPOINT).rstrip("\0")


def connect(opened: Socket, address: str) -> None:
    """Connect; the connection is made, and made again, in the background."""
    if "[" in address:
        opened.set(zmq.IPV6, 1)
    try:
        opened.connect(address)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot connect to {address!r}: {error.strerror}; write tcp://HOST:PORT") from error


def send_frames(to: Socket, frames: Sequence[Bytes], flags: int = 0) -> None:
    """Send one message. Large frames are not copied and must not change any more; `flags` are of the first frame."""
    last = len(frames) - 1
    flags |= MORE
    for i, frame in enumerate(frames):
        to.send(frame, flags if i < last else flags & ~MORE, copy=len(frame) < ZERO_COPY_BYTES)
        flags = MORE


def receive_frames(opened: Socket, flags: int = NOBLOCK) -> list[Bytes]:
    """All frames of the next message; `zmq.Again` if there is none. Large frames are views of ZeroMQ's memory."""
    frames: list[Bytes] = []
    while True:
        frame = opened.recv(flags, copy=False)
        frames.append(frame.bytes if len(frame) < ZERO_COPY_BYTES else frame.buffer)
        if not frame.more:
            return frames
        flags = 0
