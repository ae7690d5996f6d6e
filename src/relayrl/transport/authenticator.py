"""Answers ZeroMQ's question who may connect: the ZAP protocol (RFC 27), for CURVE keys only.

ZeroMQ asks before a connection carries its first message. The answer is given in the thread that polls the server's sockets;
the id of a user is its public key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from relayrl.transport.keys import Access
from relayrl.transport.wire_sockets import Socket

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION, _CURVE = b"1.0", b"CURVE"
DOMAIN = b"relayrl"

_log = logging.getLogger(__name__)


class Authenticator:
    """The handler of one context. It is opened before the sockets that it guards."""

    def __init__(self, context: zmq.Context[Socket], access: Access, on_refusal: Callable[[], None]) -> None:
        self._access, self._on_refusal = access, on_refusal
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)

    def guard(self, opened: Socket) -> None:
        """Let only authorised keys connect to the socket, which is not bound yet."""
        opened.set(zmq.CURVE_SERVER, 1)
        opened.set(zmq.CURVE_SECRETKEY, self._access.own.secret.encode())
        opened.set(zmq.CURVE_PUBLICKEY, self._access.own.public.encode())
        opened.set(zmq.ZAP_DOMAIN, DOMAIN)
        opened.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def answer(self) -> None:
        """Answer all questions that wait."""
        while self.socket.poll(0):
            version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart()
            public = ""
            if version == _VERSION and mechanism == _CURVE and len(credentials) == 1 and len(credentials[0]) == 32:
                public = _printable(credentials[0])
            self._access.refresh()
            name = self._access.name_of(public)
            if name is None:
                self._on_refusal()
                _log.warning("key refused", extra={"address": address.decode(errors="replace"), "public_key": public})
                self.socket.send_multipart([_VERSION, request, b"400", b"unknown key", b"", b""])
            else:
                self.socket.send_multipart([_VERSION, request, b"200", b"OK", public.encode(), b""])


def _printable(key: bytes) -> str:
    from zmq.utils import z85

    return z85.encode(key).decode()
