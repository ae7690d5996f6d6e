"""The client's end of the wire: calls with a deadline, pipelined requests, announcements.

    endpoint = ClientEndpoint("tcp://127.0.0.1:7776", client_id=uuid4())
    reply = endpoint.call(Message(Kind.PING, {}), timeout_s=5.0)

Used from one thread; only `wake` may be called from others. Connections come back by themselves with a growing, jittered
delay; heartbeats notice a server that is gone without a word. After a call's deadline the socket is renewed, so that nothing
of it is sent late. A lost connection loses what was under way: whoever pipelines sends again what was not answered.

Not its job: retries and what replies mean.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from typing import Any
from uuid import UUID

import zmq

from relayrl.errors import ProtocolError, ServerUnreachableError
from relayrl.transport.keys import ClientKeys
from relayrl.transport.messages import Bytes, Kind, Message, decode, encode
from relayrl.transport.wire_sockets import NOBLOCK, Socket, connect, milliseconds, receive_frames, send_frames

_MAX_REPLY_BYTES = 1 << 30
_HIGH_WATER = 1_000
_SEND_TIMEOUT_S = 10.0
_RECEIVE_TIMEOUT = int(zmq.RCVTIMEO)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 2_000, 30_000
"""A heartbeat waits behind a frame that is on its way: over a slow network, a frame must be through before the time-out."""


class ClientEndpoint:
    """One client's connection to one server."""

    def __init__(
        self,
        address: str,
        *,
        client_id: UUID,
        keys: ClientKeys | None = None,
        max_reply_bytes: int = _MAX_REPLY_BYTES,
    ) -> None:
        self.address, self.client_id, self._keys = address, client_id, keys
        self._max_reply_bytes = max_reply_bytes
        self._number = 0
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._subscriber: Socket | None = None
        self._poller: zmq.Poller | None = None
        """Of the sockets that are open; made when it is needed."""
        self.num_malformed = 0
        """Replies and announcements that were dropped because they could not be decoded."""
        try:
            self._dealer = self._connected(zmq.DEALER, address)
        except BaseException:
            self._context.destroy(linger=0)
            self._wake_reader.close()
            self._wake_writer.close()
            raise

    def call(self, message: Message, timeout_s: float) -> Message:
        """Send, and give the reply; `ServerUnreachableError` after `timeout_s`. Other requests' replies are dropped."""
        end_s = time.monotonic() + timeout_s
        try:
            number = self.send(message, timeout_s)
            while (reply := self.receive(end_s - time.monotonic())) is not None:
                if reply.number == number:
                    return reply
        except ServerUnreachableError:
            self.renew()
            raise
        self.renew()
        raise ServerUnreachableError(
            f"{self.address} did not answer {message.kind.name} within {timeout_s:g} s; is the server running there, and "
            "does it know this client's key?"
        )

    def send(self, message: Message, timeout_s: float = _SEND_TIMEOUT_S) -> int:
        """Send a request and give its number, which the reply repeats. The payload must not change until then."""
        self._number += 1
        kind, header, payload, _ = message
        self._send(encode(Message(kind, header, payload, self._number)), timeout_s)
        return self._number

    def receive(self, timeout_s: float) -> Message | None:
        """The next reply, in the order in which they come; None after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            try:
                if left_s <= 0.0:
                    if not _is_readable(self._dealer):
                        return None
                    frames = receive_frames(self._dealer)
                else:  # faster than polling: the socket waits by itself
                    self._dealer.setsockopt(_RECEIVE_TIMEOUT, milliseconds(left_s))
                    frames = receive_frames(self._dealer, 0)
            except zmq.Again:
                return None
            try:
                return decode(frames)
            except ProtocolError:
                self.num_malformed += 1
                left_s = end_s - time.monotonic()

    def wait(self, timeout_s: float) -> None:
        """Return when a reply or an announcement has come, when somebody called `wake`, or after `timeout_s`."""
        if self._poller is None:
            self._poller = zmq.Poller()
            for each in (self._dealer, self._subscriber, self._wake_reader):
                if each is not None:
                    self._poller.register(each, _READABLE)
        ready = self._poller.poll(milliseconds(timeout_s))
        if any(source == self._wake_reader.fileno() for source, _ in ready):
            self._wake_reader.recv(1 << 10)

    def wake(self) -> None:
        """End a `wait` of the thread that uses this; from any thread."""
        with contextlib.suppress(OSError):  # it is closed, or so many have called that it wakes up anyway
            self._wake_writer.send(b"\0")

    def renew(self) -> None:
        """Close the connection, with all that waits in it, and open another one."""
        self._dealer.close(linger=0)
        self._dealer, self._poller = self._connected(zmq.DEALER, self.address), None

    def subscribe(self, announce_address: str, topic: str) -> None:
        """Hear announcements of `topic` from now on."""
        if self._subscriber is None:
            self._subscriber, self._poller = self._connected(zmq.SUB, announce_address), None
        else:
            connect(self._subscriber, announce_address)
        self._subscriber.set(zmq.SUBSCRIBE, topic.encode())

    def announcements(self) -> list[dict[str, Any]]:
        """Headers of the announcements that have come, each with its `topic`; does not wait."""
        heard: list[dict[str, Any]] = []
        while self._subscriber is not None and _is_readable(self._subscriber):
            frames = receive_frames(self._subscriber)
            try:
                message = decode(frames[1:])
            except ProtocolError:
                self.num_malformed += 1
                continue
            if message.kind is Kind.ANNOUNCE:
                heard.append(message.header)
        return heard

    def close(self, drain_s: float = 0.0) -> None:
        """Close the connection; what was sent and has not left yet gets `drain_s` seconds. May be called again."""
        self._context.destroy(linger=int(drain_s * 1000))
        self._wake_reader.close()
        self._wake_writer.close()

    def _send(self, frames: list[Bytes], timeout_s: float) -> None:
        try:
            send_frames(self._dealer, frames, NOBLOCK)
        except zmq.Again:
            if not self._dealer.poll(milliseconds(timeout_s), zmq.POLLOUT):
                raise ServerUnreachableError(
                    f"{self.address} takes no more messages; it is gone, or too slow"
                ) from None
            send_frames(self._dealer, frames)

    def _connected(self, kind: int, address: str) -> Socket:
        opened = self._context.socket(kind)
        opened.set(zmq.LINGER, 0)
        opened.set(zmq.MAXMSGSIZE, self._max_reply_bytes)
        opened.set(zmq.RCVHWM, _HIGH_WATER)
        opened.set(zmq.SNDHWM, _HIGH_WATER)
        # libzmq doubles the delay up to the second one, and adds jitter; clients of one server differ in both.
        opened.set(zmq.RECONNECT_IVL, random.randint(50, 150))
        opened.set(zmq.RECONNECT_IVL_MAX, random.randint(1_000, 3_000))
        opened.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        opened.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        if self._keys is not None:
            opened.set(zmq.CURVE_SERVERKEY, self._keys.server_public.encode())
            opened.set(zmq.CURVE_PUBLICKEY, self._keys.own.public.encode())
            opened.set(zmq.CURVE_SECRETKEY, self._keys.own.secret.encode())
        connect(opened, address)
        return opened


def _is_readable(opened: Socket) -> bool:
    """Whether a message has come; asking takes less time than the exception of a receive in vain."""
    return bool(int(opened.getsockopt(_EVENTS)) & _READABLE)
