"""The server's end of the wire: a ROUTER for requests and a publisher for announcements, with bounds for every client.

    endpoint = ServerEndpoint("tcp://127.0.0.1:0")
    for request in endpoint.poll(timeout_s=0.1):
        endpoint.reply(request, Message(Kind.ACK, {…}))

The thread that calls `poll` owns the sockets. `reply`, `release` and `announce` may be called from any thread: others than
the owner put what they send into a bounded queue and wake the owner up.

Whatever is malformed, too large, too much or too fast is answered with an ERROR that names the reason, counted, and never
given to `poll`. A request counts against its client's memory until it is ended by `reply` or `release`. Off loopback only
clients with an authorised key are let in.

Not its job: what messages mean.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from relayrl.errors import ConfigError, ProtocolError, QueueClosedError, QueueTimeoutError
from relayrl.garbage import living_set_aside
from relayrl.observability.metrics import MetricRegistry
from relayrl.transport.authenticator import Authenticator
from relayrl.transport.client_accounts import ClientAccount, ClientAccounts
from relayrl.transport.connection_watch import ConnectionWatch, max_connections
from relayrl.transport.endpoint_metrics import EndpointMetrics
from relayrl.transport.keys import Access
from relayrl.transport.limits import ClientLimits
from relayrl.transport.messages import MAX_PAYLOADS, Bytes, Kind, Message, decode, encode
from relayrl.transport.wire_sockets import (
    MORE,
    NOBLOCK,
    ZERO_COPY_BYTES,
    Socket,
    bind_to,
    keep_freed_memory,
    milliseconds,
    send_frames,
)

_MAX_BATCH = 256
_MAX_BATCH_BYTES = 4 << 20
_MAX_REFUSED = 8
"""Messages that are refused before those are given out that were not: nobody waits for long behind others' garbage."""
_MAX_QUEUED = 65_536
_QUEUE_TIMEOUT_S = 30.0
_RECEIVE_HIGH_WATER = 256
_SEND_HIGH_WATER = 1_000
_SUBSCRIPTION_BYTES, _MAX_SUBSCRIPTIONS = 1 << 10, 64
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_LOOK_S, _INSPECT_S = 0.005, 0.25
"""Between two looks at what is not a request, while requests come all the time; between two looks at keys and connections."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Request:
    """A message that passed all bounds, and who sent it."""

    client: bytes
    """Routing id of the connection; a client that connects again has another one."""
    user: str
    """Name of the key that the client proved to have; empty without keys."""
    message: Message
    _account: ClientAccount
    _held_bytes: int


class ServerEndpoint:
    """Receives requests within `limits` and sends replies and announcements."""

    def __init__(
        self,
        bind: str,
        *,
        limits: ClientLimits | None = None,
        access: Access | None = None,
        announce_bind: str | None = None,
        metrics: MetricRegistry | None = None,
    ) -> None:
        self.limits = limits = limits or ClientLimits()
        keep_freed_memory()
        announce_bind = announce_bind or f"{bind.rpartition(':')[0]}:0"
        for address in (bind, announce_bind):
            _require_keys(address, access)
        self.metrics = metrics or MetricRegistry()
        self._accounts = ClientAccounts(limits)
        self._counts = EndpointMetrics(self.metrics, self._accounts)
        self._access, self._checked_revision = access, 0
        self._polling = threading.Lock()
        self._owner = 0
        self._outbox: deque[Callable[[], None]] = deque()
        self._room = threading.Condition()
        self._awake = self._is_closing = self._closed = False
        self._looked_s = self._attended_s = self._checked_s = self._inspected_s = 0.0
        self._num_messages = self._num_bytes = 0
        """Of the present batch."""
        # ZeroMQ's descriptors, rather than its poller: one system call instead of two for each socket. A descriptor is
        # readable when something changed since the last time that the socket was found empty.
        self._selector = selectors.DefaultSelector()
        self._while_open = contextlib.ExitStack()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        try:
            self._authenticator = (
                Authenticator(self._context, access, self._counts.refused_keys.inc) if access is not None else None
            )
            # One frame may be twice as long as a message, so that what is a little too large gets an answer.
            self._router, self._router_watch = self._open(zmq.ROUTER, 2 * limits.message_bytes)
            self._router.set(zmq.ROUTER_MANDATORY, 1)
            self._publisher, self._publisher_watch = self._open(zmq.XPUB, _SUBSCRIPTION_BYTES)
            self._publisher.set(zmq.XPUB_VERBOSE, 1)
            self.address = bind_to(self._router, bind)
            self.announce_address = bind_to(self._publisher, announce_bind)
        except BaseException:
            self._release_sockets(0.0)
            raise
        others = [self._publisher, self._router_watch.monitor, self._publisher_watch.monitor]
        if self._authenticator is not None:
            others.append(self._authenticator.socket)
        sources: list[socket.socket | Socket] = [self._router, self._wake_reader, *others]
        for each in sources:
            self._selector.register(each, selectors.EVENT_READ, data=each in others)
        # What is loaded by now stays: messages that wait would have the garbage collector walk through all of it (torch:
        # 0.15 s) again and again, in the thread that receives.
        self._while_open.enter_context(living_set_aside())

    @property
    def num_clients(self) -> int:
        """Connections that have sent something and are open."""
        return len(self._accounts)

    def poll(self, timeout_s: float) -> list[Request]:
        """Requests that have come, at most a few hundred; empty if none comes within `timeout_s`.

        Also lets clients in, cuts others off and sends what other threads put into the queue: call it all the time.
        """
        now_s = time.monotonic()
        end_s = now_s + timeout_s
        with self._polling:
            if self._closed:
                raise QueueClosedError("poll() after close() of a server endpoint; open a new one")
            self._owner = threading.get_ident()
            while True:
                self._send_queued()
                if now_s - self._looked_s > _LOOK_S:
                    self._look(0.0)
                requests = self._receive_batch(now_s)
                if requests or self._is_closing or (now_s := time.monotonic()) >= end_s:
                    return requests
                now_s = self._look(min(end_s - now_s, _INSPECT_S))

    def reply(self, to: Request | bytes, message: Message) -> None:
        """Answer a request, which ends it, or send a message that was not asked for to a client."""
        if isinstance(to, Request):
            kind, header, payload, _ = message
            message = Message(kind, header, payload, to.message.number)
        frames = encode(message)
        if threading.get_ident() == self._owner:
            self._send_reply(to, frames)
        else:
            self._queue(lambda: self._send_reply(to, frames))

    def release(self, request: Request) -> None:
        """End a request without a reply, for example because another one's reply covers it."""
        if threading.get_ident() == self._owner:
            self._end(request)
        else:
            self._queue(lambda: self._end(request))

    def run_in_poll(self, action: Callable[[], None]) -> None:
        """Have the thread that polls run `action`, before anything that comes later; from any thread."""
        self._queue(action)

    def announce(self, topic: str, header: dict[str, Any]) -> None:
        """Send to all subscribers of `topic`; those that are away never hear of it."""
        frames = [topic.encode(), *encode(Message(Kind.ANNOUNCE, {"topic": topic, **header}))]
        if threading.get_ident() == self._owner:
            self._publish(frames)
        else:
            self._queue(lambda: self._publish(frames))

    def close(self, drain_s: float = 1.0) -> None:
        """Send what is queued, for at most `drain_s` seconds, and close the sockets. May be called again.

        A `poll` that waits in another thread returns; the next one raises.
        """
        self._is_closing = True
        self._wake()
        with self._polling:
            if self._closed:
                return
            self._owner = threading.get_ident()
            self._send_queued()
            self._closed = True
            self._release_sockets(drain_s)

    # ---- receiving, in the owner's thread

    def _receive_batch(self, now_s: float) -> list[Request]:
        requests: list[Request] = []
        num_refused = self._num_messages = self._num_bytes = 0
        receive = self._router.recv
        for _ in range(_MAX_BATCH):
            try:
                routing_id = receive(NOBLOCK)
            except zmq.Again:
                self._inspect(now_s)
                break
            request = self._receive(routing_id, now_s)
            if request is not None:
                requests.append(request)
            else:
                num_refused += 1
            if self._num_bytes > _MAX_BATCH_BYTES or (requests and num_refused >= _MAX_REFUSED):
                break
            # An exception takes longer than a question: whoever asks alone is answered sooner.
            if self._num_messages == 1 and not int(self._router.getsockopt(_EVENTS)) & _READABLE:
                self._inspect(now_s)
                break
        if self._num_messages:
            self._counts.messages.inc(self._num_messages)
            self._counts.bytes.inc(self._num_bytes)
        return requests

    def _receive(self, routing_id: bytes, now_s: float) -> Request | None:
        """The rest of a message whose routing id was read; None if it was refused or answered here."""
        frames: list[Bytes] = []
        size, max_size, receive = 0, self.limits.message_bytes, self._router.recv
        while True:
            frame = receive(0, copy=False)
            length = len(frame)
            size += length
            if size <= max_size and len(frames) <= 2 + MAX_PAYLOADS:
                frames.append(frame.bytes if length < ZERO_COPY_BYTES else frame.buffer)
            if not frame.more:
                break
        self._num_messages += 1
        self._num_bytes += size
        account = self._accounts.get(routing_id)
        if account is None and (account := self._admit(routing_id, frame, now_s)) is None:
            return None
        account.has_delivered = True
        try:
            self._accounts.charge(account, size, now_s)
            message = decode(frames)
        except ProtocolError as error:
            self._refuse(routing_id, error, frames)
            return None
        if message.kind is Kind.PING:
            self._send(routing_id, encode(Message(Kind.PONG, {}, (), message.number)))
            return None
        if message.kind is Kind.BYE:
            self._accounts.close(routing_id)
        self._accounts.hold(account, size)
        return Request(routing_id, account.user, message, account, size)

    def _admit(self, routing_id: bytes, frame: zmq.Frame, now_s: float) -> ClientAccount | None:
        """The account of a client that sends for the first time; None if its key was revoked since it connected."""
        self._router_watch.follow()  # or it may be taken for one before it, which had the same descriptor
        connection = self._router_watch.of(frame)
        key = user = ""
        if self._access is not None:
            key = str(frame.get("User-Id"))
            user = self._access.name_of(key) or ""
            if not user:
                self._counts.revoked.inc()
                if connection is not None:
                    self._router_watch.cut(connection)
                return None
        if connection is None:  # closed since; nobody will tell us to close its account
            return ClientAccount("", user, self.limits, now_s)
        connection.routing_id, connection.key = routing_id, key
        return self._accounts.open(routing_id, key or connection.peer[0], user, now_s)

    def _refuse(self, routing_id: bytes, error: ProtocolError, frames: list[Bytes]) -> None:
        self._counts.refused[error.code].inc()
        number = error.number
        if number is None and frames and len(frames[0]) == 16:
            number = int.from_bytes(frames[0][8:16], "big")
        if number is not None:
            header = {"code": error.code, "message": str(error)}
            self._send(routing_id, encode(Message(Kind.ERROR, header, (), number)))

    # ---- sending, in the owner's thread

    def _queue(self, action: Callable[[], None]) -> None:
        """Have the owner's thread run `action` when it polls."""
        if len(self._outbox) >= _MAX_QUEUED:
            with self._room:
                if not self._room.wait_for(lambda: len(self._outbox) < _MAX_QUEUED, _QUEUE_TIMEOUT_S):
                    raise QueueTimeoutError(f"{_MAX_QUEUED} messages wait to be sent; nobody calls poll()")
        self._outbox.append(action)
        if not self._awake:
            self._wake()

    def _wake(self) -> None:
        self._awake = True
        with contextlib.suppress(OSError):  # closed: nothing is sent any more
            self._wake_writer.send(b"\0")

    def _send_queued(self) -> None:
        if self._awake:
            with contextlib.suppress(BlockingIOError):  # its byte is still to come; the next poll reads it
                self._wake_reader.recv(64)
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
        self._accounts.hold(request._account, -request._held_bytes)
        request._held_bytes = 0

    def _send(self, routing_id: bytes, frames: list[Bytes]) -> None:
        try:
            self._router.send(routing_id, MORE | NOBLOCK)
            send_frames(self._router, frames)
        except zmq.Again:
            self._counts.unread.inc()
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._counts.undeliverable.inc()

    def _publish(self, frames: list[Bytes]) -> None:
        send_frames(self._publisher, frames)
        self._attended_s = 0.0  # sending may have taken note of a subscription, whose descriptor is then not readable

    # ---- connections, in the owner's thread

    def _look(self, timeout_s: float) -> float:
        """Wait until something comes, and attend to it if it is no request; gives the time."""
        ready = self._selector.select(timeout_s)
        self._looked_s = now_s = time.monotonic()
        if any(key.data for key, _ in ready) or now_s - self._attended_s > _INSPECT_S:
            self._attended_s = now_s
            self._attend()
        if self._access is not None and now_s - self._checked_s > _INSPECT_S:
            self._checked_s = now_s
            self._cut_revoked(self._access)
        return now_s

    def _attend(self) -> None:
        """Whatever comes beside requests: connections, questions who may connect, subscriptions."""
        if self._authenticator is not None:
            self._authenticator.answer()
        self._router_watch.follow()
        self._publisher_watch.follow()
        while self._publisher.poll(0):
            self._count_subscription()

    def _count_subscription(self) -> None:
        while True:
            frame = self._publisher.recv(copy=False)
            if not frame.more:
                break
        self._publisher_watch.follow()  # as in `_admit`
        connection = self._publisher_watch.of(frame)
        if connection is not None:
            connection.num_subscriptions += 1
            if self._access is not None:
                connection.key = str(frame.get("User-Id"))
                if self._access.name_of(connection.key) is None:  # revoked since it connected
                    self._counts.revoked.inc()
                    self._publisher_watch.cut(connection)
            if connection.num_subscriptions > _MAX_SUBSCRIPTIONS:
                self._publisher_watch.cut(connection)

    def _inspect(self, now_s: float) -> None:
        """Now and then, when all messages were read: cut off who sends without end."""
        if now_s - self._inspected_s < _INSPECT_S:
            return
        self._inspected_s = now_s
        for connection in self._router_watch:
            account = self._accounts.get(connection.routing_id)
            if account is not None and account.has_delivered:
                connection.delivered, account.has_delivered = True, False
        self._router_watch.cut_endless()
        self._publisher_watch.cut_endless()

    def _cut_revoked(self, access: Access) -> None:
        """The authenticator reads the file too: what counts is whether connections were checked by what it says now."""
        access.refresh()
        if access.revision != self._checked_revision:
            self._checked_revision = access.revision
            for watch in (self._router_watch, self._publisher_watch):
                for connection in watch:
                    if connection.key and access.name_of(connection.key) is None:
                        self._counts.revoked.inc()
                        _log.warning("key revoked: connection cut", extra={"public_key": connection.key})
                        self._accounts.close(connection.routing_id)
                        watch.cut(connection)

    # ---- sockets

    def _open(self, kind: int, message_bytes: int) -> tuple[Socket, ConnectionWatch]:
        limits, opened = self.limits, self._context.socket(kind)
        opened.set(zmq.LINGER, 0)
        opened.set(zmq.MAXMSGSIZE, message_bytes)
        opened.set(zmq.RCVHWM, _RECEIVE_HIGH_WATER)
        opened.set(zmq.SNDHWM, _SEND_HIGH_WATER)
        opened.set(zmq.HANDSHAKE_IVL, milliseconds(limits.handshake_timeout_s))
        opened.set(zmq.HEARTBEAT_IVL, milliseconds(limits.heartbeat_s))
        opened.set(zmq.HEARTBEAT_TIMEOUT, milliseconds(limits.heartbeat_timeout_s))
        if self._authenticator is not None:
            self._authenticator.guard(opened)
        watch = ConnectionWatch(
            opened,
            max_per_address=2 * limits.connections,  # beyond the limit there is an answer, beyond twice the limit none
            max_total=min(limits.total_connections, max_connections()),
            message_bytes=message_bytes,
            on_gone=lambda connection: self._accounts.close(connection.routing_id),
            refused=self._counts.refused_connections,
            endless=self._counts.endless,
        )
        return opened, watch

    def _release_sockets(self, drain_s: float) -> None:
        self._while_open.close()
        self._selector.close()
        self._context.destroy(linger=milliseconds(drain_s))
        self._wake_reader.close()
        self._wake_writer.close()


def _require_keys(address: str, access: Access | None) -> None:
    """`ConfigError` if others than this machine could connect without a key."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if scheme != "tcp" or not host:
        raise ConfigError(f"cannot bind to {address!r}; write tcp://HOST:PORT, with port 0 for any free one")
    if access is None and not _is_loopback(host):
        raise ConfigError(
            f"{address} can be reached from other machines, and no keys are given; make them with `relayrl keys new server` "
            "and `relayrl keys authorise`, or bind to tcp://127.0.0.1:PORT"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
