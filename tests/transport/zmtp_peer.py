"""A peer that speaks ZMTP 3.1 by hand, and may stop, lie or hold back anywhere."""

from __future__ import annotations

import socket
import struct

from waiting import DEADLINE_S

MORE, LONG, COMMAND = 1, 2, 4


def greeting(mechanism=b"NULL"):
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(body, flags=0):
    if len(body) < 256 and not flags & LONG:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body


def ready(socket_type=b"DEALER"):
    return frame(b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type, COMMAND)


class RawPeer:
    """A TCP connection to a server; `handshake` makes it one of ZMTP."""

    def __init__(self, address):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(DEADLINE_S)

    def handshake(self, socket_type=b"DEALER"):
        self.send(greeting() + ready(socket_type))
        self.receive(64)
        flags, length = self.receive(2)
        assert flags & COMMAND, "the server sends READY"
        self.receive(length)
        return self

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, count):
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                raise ConnectionError("closed by the server")
            data += chunk
        return data

    def is_closed(self):
        """Wait until the server closes the connection; what it sends before is ignored."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self):
        self.socket.close()
