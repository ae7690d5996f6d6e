"""The TCP connections of a bound socket: counts them, knows whose they are, and cuts them.

ZeroMQ hides connections; its monitor tells of each descriptor that it accepts and closes, and each message of the descriptor
that it came from. With these, this file does what ZeroMQ does not:

- refuse connections beyond a number, for one address and for all together, before they cost more than a descriptor;
- close the connection of a client whose key was revoked;
- close a connection that sends a message without end. ZeroMQ bounds frames, but not their number, and keeps the frames of an
  unfinished message in memory: a connection that has received more than the largest message may have, and delivered none, is
  sending one. The kernel counts what it received (Linux; elsewhere this check is left out).

A descriptor's number is used again after it was closed, so a connection is only ever touched after a look at its peer.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from relayrl.observability.metrics import Counter
from relayrl.transport.wire_sockets import Socket

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_BYTES_RECEIVED_OFFSET = 128
"""Of `tcpi_bytes_received` in Linux' `struct tcp_info`, since 4.1."""
_SLACK_BYTES = 16 << 20
"""What the kernel and ZeroMQ may hold of complete messages that nobody could read yet."""

R = TypeVar("R")
_log = logging.getLogger(__name__)


class Connection:
    """One accepted connection."""

    __slots__ = ("delivered", "descriptor", "key", "marked_bytes", "num_subscriptions", "peer", "routing_id")

    def __init__(self, descriptor: int, peer: tuple[str, int]) -> None:
        self.descriptor, self.peer = descriptor, peer
        self.key = ""
        """The public key that its client proved to have, once a message came."""
        self.routing_id = b""
        self.num_subscriptions = 0
        self.delivered = False
        """Whether a message came since the last look at what the kernel received."""
        self.marked_bytes = 0


class ConnectionWatch:
    """The connections of `watched`, which is not bound yet. Used by the thread that owns the socket."""

    def __init__(
        self,
        watched: Socket,
        *,
        max_per_address: int,
        max_total: int,
        message_bytes: int,
        on_gone: Callable[[Connection], None],
        refused: Counter,
        endless: Counter,
    ) -> None:
        self.monitor: Socket = watched.get_monitor_socket(_EVENTS)
        self._max_per_address, self._max_total, self._message_bytes = max_per_address, max_total, message_bytes
        self._on_gone, self._refused, self._endless = on_gone, refused, endless
        self._connections: dict[int, Connection] = {}
        self._addresses: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections.values()))

    def follow(self) -> None:
        """Take note of connections that came and went."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            descriptor = int(event["value"])
            self._remove(descriptor)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._add(descriptor)

    def of(self, frame: zmq.Frame) -> Connection | None:
        """The connection that a message came by; None if it is closed already."""
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # ZeroMQ itself wrote it, for example to end the subscriptions of a closed connection
            return None
        if descriptor not in self._connections:
            self.follow()
        return self._connections.get(descriptor)

    def cut(self, connection: Connection) -> None:
        """Close a connection; ZeroMQ notices, and forgets what of it was unfinished."""
        _use_connection(connection, _shut_down)

    def cut_endless(self) -> None:
        """Cut connections that send a message without end. To be called when all complete messages have been read."""
        if sys.platform != "linux":
            return
        for connection in self:
            received = _use_connection(connection, _received_bytes)
            if received is None:
                continue
            if connection.delivered:
                connection.delivered, connection.marked_bytes = False, received
            elif received - connection.marked_bytes > 2 * self._message_bytes + _SLACK_BYTES:
                self._endless.inc()
                _log.warning("a message without end: connection cut", extra={"address": connection.peer[0]})
                self.cut(connection)

    def _add(self, descriptor: int) -> None:
        peer = _peer_of(descriptor)
        if peer is None:
            return
        connection = Connection(descriptor, peer)
        num_same = self._addresses.get(peer[0], 0)
        if len(self._connections) >= self._max_total or num_same >= self._max_per_address:
            self._refused.inc()
            self.cut(connection)
            return
        self._connections[descriptor] = connection
        self._addresses[peer[0]] = num_same + 1

    def _remove(self, descriptor: int) -> None:
        connection = self._connections.pop(descriptor, None)
        if connection is not None:
            self._addresses[connection.peer[0]] -= 1
            if not self._addresses[connection.peer[0]]:
                del self._addresses[connection.peer[0]]
            self._on_gone(connection)


def max_connections() -> int:
    """How many connections each of two sockets may have, for the process to keep descriptors for all else."""
    try:
        import resource
    except ImportError:  # Windows
        return 1 << 16
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if allowed == resource.RLIM_INFINITY else max(16, allowed // 2 - 128)


def _peer_of(descriptor: int) -> tuple[str, int] | None:
    """Address and port of the other side; None if the descriptor is closed, or no connection of TCP."""
    return _use_descriptor(descriptor, _peer_name)


def _peer_name(connected: socket.socket) -> tuple[str, int] | None:
    name = connected.getpeername()
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def _use_connection(connection: Connection, use: Callable[[socket.socket], R | None]) -> R | None:
    """What `use` gives for the connection's socket; None if it is closed, or its descriptor is another one's by now."""
    return _use_descriptor(
        connection.descriptor, lambda connected: use(connected) if _peer_name(connected) == connection.peer else None
    )


def _use_descriptor(descriptor: int, use: Callable[[socket.socket], R | None]) -> R | None:
    """What `use` gives for a descriptor that is ZeroMQ's, which may close it at any time; None if it has."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        return use(borrowed)
    except OSError:
        return None
    finally:
        borrowed.detach()


def _shut_down(connected: socket.socket) -> None:
    """Make ZeroMQ see the end of the connection, and its close a reset: the other side learns of it, and nothing lingers."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.shutdown(socket.SHUT_RDWR)


def _received_bytes(connected: socket.socket) -> int | None:
    """What the kernel has received; None where it does not say."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED_OFFSET + 8)
    if len(info) < _BYTES_RECEIVED_OFFSET + 8:
        return None
    return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED_OFFSET)[0])
