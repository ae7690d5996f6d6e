"""The server's end of the wire: a ROUTER for requests and a publisher for announcements, with bounds for every client.

    endpoint = ServerEndpoint("tcp://127.0.0.1:0")
    for request in endpoint.poll(timeout_s=0.1):
        endpoint.reply(request, Message(Kind.ACK, {…}))

The thread that calls `poll` owns the sockets. `reply`, `release` and `announce` may be called from any thread: others than
the owner put what they send into a bounded queue and wake the owner up.

Whatever is malformed, too large, too much or too fast is answered with an ERROR that names the reason, counted, and never
given to `poll`. A request counts against its client's memory until it is ended by `reply` or `release`.

Not its job: what messages mean.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from relayrl.errors import ProtocolError, QueueClosedError, QueueTimeoutError
from relayrl.observability.metrics import MetricRegistry
from relayrl.transport.limits import ClientLimits, TokenBucket
from relayrl.transport.messages import MAX_PAYLOADS, Bytes, Kind, Message, decode, encode
from relayrl.transport.wire_sockets import Socket, bind_to, contents, milliseconds, send_frames

_MAX_BATCH = 256
_MAX_BATCH_BYTES = 32 << 20
_MAX_QUEUED = 65_536
_QUEUE_TIMEOUT_S = 30.0
_RECEIVE_HIGH_WATER = 256
_SEND_HIGH_WATER = 1_000
REFUSALS = ("too_large", "rate", "memory", "connections", "malformed", "version")

_log = logging.getLogger(__name__)


class _Client:
    """What is counted of one connection."""

    __slots__ = ("bytes", "held_bytes", "messages", "seen_s", "user")

    def __init__(self, user: str, limits: ClientLimits, now_s: float) -> None:
        self.user, self.seen_s = user, now_s
        self.held_bytes = 0
        self.messages = TokenBucket(limits.messages_per_s, now_s)
        self.bytes = TokenBucket(limits.bytes_per_s, now_s)


@dataclass(slots=True, eq=False)
class Request:
    """A message that passed all bounds, and who sent it."""

    client: bytes
    """Routing id of the connection; a client that connects again has another one."""
    user: str
    """Name of the key that the client proved to have; empty without keys."""
    message: Message
    _account: _Client
    _held_bytes: int


class ServerEndpoint:
    """Receives requests within `limits` and sends replies and announcements."""

    def __init__(
        self,
        bind: str,
        *,
        limits: ClientLimits | None = None,
        announce_bind: str | None = None,
        metrics: MetricRegistry | None = None,
    ) -> None:
        self.limits = limits or ClientLimits()
        self.metrics = metrics or MetricRegistry()
        self._clients: dict[bytes, _Client] = {}
        self._held_bytes = 0
        self._count()
        self._polling = threading.Lock()
        self._owner = 0
        self._outbox: deque[Callable[[], None]] = deque()
        self._room = threading.Condition()
        self._awake = False
        self._closed = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._context = zmq.Context()
        try:
            self._router = self._open(zmq.ROUTER, self.limits.message_bytes)
            self._router.set(zmq.ROUTER_MANDATORY, 1)
            self.address = bind_to(self._router, bind)
            self._publisher = self._open(zmq.PUB, 1 << 10)
            self.announce_address = bind_to(self._publisher, announce_bind or _any_port(bind))
        except BaseException:
            self._context.destroy(linger=0)
            self._wake_reader.close()
            self._wake_writer.close()
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wake_reader, zmq.POLLIN)

    @property
    def num_clients(self) -> int:
        """Connections that have sent something and have not said good-bye."""
        return len(self._clients)

    def poll(self, timeout_s: float) -> list[Request]:
        """Requests that have come, at most a few hundred; empty if none comes within `timeout_s`.

        Also sends what other threads put into the queue, so it is to be called all the time.
        """
        end_s = time.monotonic() + timeout_s
        with self._polling:
            if self._closed:
                raise QueueClosedError("poll() after close() of a server endpoint; open a new one")
            self._owner = threading.get_ident()
            while True:
                self._send_queued()
                requests = self._receive_batch()
                left_s = end_s - time.monotonic()
                if requests or left_s <= 0.0:
                    return requests
                self._poller.poll(milliseconds(left_s))

    def reply(self, to: Request | bytes, message: Message) -> None:
        """Answer a request, which ends it, or send a message that was not asked for to a client."""
        if isinstance(to, Request):
            message = message._replace(number=to.message.number)
        frames = encode(message)
        self._do(lambda: self._send_reply(to, frames))

    def release(self, request: Request) -> None:
        """End a request without a reply, for example because another one's reply covers it."""
        self._do(lambda: self._end(request))

    def announce(self, topic: str, header: dict[str, Any]) -> None:
        """Tell all subscribers of `topic`; those that are away never hear of it."""
        frames = [topic.encode(), *encode(Message(Kind.ANNOUNCE, {"topic": topic, **header}))]
        self._do(lambda: self._publish(frames))

    def close(self, drain_s: float = 1.0) -> None:
        """Send what is queued, for at most `drain_s` seconds, and close the sockets. May be called again."""
        with self._polling:
            if self._closed:
                return
            self._owner = threading.get_ident()
            self._send_queued()
            self._closed = True
            self._context.destroy(linger=int(drain_s * 1000))
            self._wake_reader.close()
            self._wake_writer.close()

    # ---- receiving, in the owner's thread

    def _receive_batch(self) -> list[Request]:
        now_s = time.monotonic()
        requests: list[Request] = []
        num_bytes = 0
        for _ in range(_MAX_BATCH):
            try:
                routing_id = self._router.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            request = self._receive(routing_id, now_s)
            if request is not None:
                requests.append(request)
                num_bytes += request._held_bytes
                if num_bytes > _MAX_BATCH_BYTES:
                    break
        return requests

    def _receive(self, routing_id: bytes, now_s: float) -> Request | None:
        """The rest of a message whose routing id was read; None if it was refused or answered here."""
        frames: list[Bytes] = []
        size = 0
        while True:
            frame = self._router.recv(copy=False)
            length = len(frame)
            size += length
            if len(frames) <= 2 + MAX_PAYLOADS and size <= self.limits.message_bytes:
                frames.append(contents(frame))
            if not frame.more:
                break
        self._messages.inc()
        self._bytes.inc(size)
        client = self._clients.get(routing_id)
        try:
            if client is None:
                client = self._admit(routing_id, now_s)
            client.seen_s = now_s
            self._check_bounds(client, size, frames, now_s)
            message = decode(frames)
        except ProtocolError as error:
            self._refuse(routing_id, error)
            return None
        if message.kind is Kind.PING:
            self._send(routing_id, encode(Message(Kind.PONG, {}, (), message.number)))
            return None
        if message.kind is Kind.BYE:
            self._forget(routing_id)
        client.held_bytes += size
        self._held_bytes += size
        return Request(routing_id, client.user, message, client, size)

    def _check_bounds(self, client: _Client, size: int, frames: list[Bytes], now_s: float) -> None:
        limits = self.limits
        code = message = ""
        if size > limits.message_bytes:
            code, message = "too_large", f"a message of {size} bytes; at most {limits.message_bytes} are allowed"
        elif not client.messages.take(1.0, now_s):
            code, message = "rate", f"more than {limits.messages_per_s:g} messages a second; send fewer, or wait"
        elif not client.bytes.take(size, now_s):
            code, message = "rate", f"more than {limits.bytes_per_s:g} bytes a second; send less, or wait"
        elif client.held_bytes + size > limits.held_bytes:
            code, message = "memory", f"more than {limits.held_bytes} bytes wait for replies; wait for some"
        elif self._held_bytes + size > limits.total_held_bytes:
            code, message = "memory", "the server holds as much as it may; wait and send again"
        if code:
            raise ProtocolError(code, message, _number_of(frames))

    def _admit(self, routing_id: bytes, now_s: float) -> _Client:
        client = self._clients[routing_id] = _Client("", self.limits, now_s)
        return client

    def _forget(self, routing_id: bytes) -> None:
        self._clients.pop(routing_id, None)

    def _refuse(self, routing_id: bytes, error: ProtocolError) -> None:
        self._refused[error.code].inc()
        if error.number is not None:
            header = {"code": error.code, "message": str(error)}
            self._send(routing_id, encode(Message(Kind.ERROR, header, (), error.number)))

    # ---- sending, in the owner's thread

    def _do(self, action: Callable[[], None]) -> None:
        """Run `action` in the owner's thread: now if this is it, else when it polls."""
        if threading.get_ident() == self._owner:
            action()
            return
        if len(self._outbox) >= _MAX_QUEUED:
            with self._room:
                if not self._room.wait_for(lambda: len(self._outbox) < _MAX_QUEUED, _QUEUE_TIMEOUT_S):
                    raise QueueTimeoutError(f"{_MAX_QUEUED} messages wait to be sent; nobody calls poll()")
        self._outbox.append(action)
        if not self._awake and not self._closed:
            self._awake = True
            self._wake_writer.send(b"\0")

    def _send_queued(self) -> None:
        if self._awake:
            self._wake_reader.recv(16)
            self._awake = False  # before the queue is read: whoever comes later wakes again
        was_full = len(self._outbox) >= _MAX_QUEUED
        for _ in range(len(self._outbox)):
            self._outbox.popleft()()
        if was_full:
            with self._room:
                self._room.notify_all()

    def _send_reply(self, to: Request | bytes, frames: list[Bytes]) -> None:
        if isinstance(to, Request):
            self._end(to)
            self._send(to.client, frames)
        else:
            self._send(to, frames)

    def _end(self, request: Request) -> None:
        request._account.held_bytes -= request._held_bytes
        self._held_bytes -= request._held_bytes
        request._held_bytes = 0

    def _send(self, routing_id: bytes, frames: list[Bytes]) -> None:
        try:
            self._router.send(routing_id, zmq.SNDMORE | zmq.NOBLOCK)
            send_frames(self._router, frames)
        except zmq.Again:
            self._unread.inc()
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(routing_id)
            self._undeliverable.inc()

    def _publish(self, frames: list[Bytes]) -> None:
        send_frames(self._publisher, frames)

    # ---- sockets and metrics

    def _open(self, kind: int, message_bytes: int) -> Socket:
        limits, opened = self.limits, self._context.socket(kind)
        opened.set(zmq.LINGER, 0)
        opened.set(zmq.MAXMSGSIZE, message_bytes)
        opened.set(zmq.RCVHWM, _RECEIVE_HIGH_WATER)
        opened.set(zmq.SNDHWM, _SEND_HIGH_WATER)
        opened.set(zmq.HANDSHAKE_IVL, int(limits.handshake_timeout_s * 1000))
        opened.set(zmq.HEARTBEAT_IVL, int(limits.heartbeat_s * 1000))
        opened.set(zmq.HEARTBEAT_TIMEOUT, int(limits.heartbeat_timeout_s * 1000))
        return opened

    def _count(self) -> None:
        metrics = self.metrics
        self._messages = metrics.counter("transport/messages_total", "messages received")
        self._bytes = metrics.counter("transport/bytes_total", "bytes received")
        self._unread = metrics.counter("transport/unread_replies_total", "replies to clients that read too slowly")
        self._undeliverable = metrics.counter("transport/undeliverable_replies_total", "replies to clients that left")
        self._refused = {
            code: metrics.counter(f"transport/refused_{code}_total", f"messages refused with code {code}")
            for code in REFUSALS
        }
        metrics.gauge("transport/clients", "connected clients").follow(lambda: len(self._clients))
        metrics.gauge("transport/held_bytes", "bytes received and not replied to").follow(lambda: self._held_bytes)


def _number_of(frames: list[Bytes]) -> int | None:
    """The request number, if it can be read."""
    return int.from_bytes(frames[0][8:16], "big") if frames and len(frames[0]) == 16 else None


def _any_port(address: str) -> str:
    """The same interface with a port of its own, for announcements."""
    return address.rpartition(":")[0] + ":0" if address.startswith("tcp:") else address + ".announce"
