"""Follows the models of another server, a training server above all: hears of versions, and fetches those that are missing.

Announcements may be lost; so the server is also asked every few seconds. A server that is away is asked again with a growing
delay. Used from one thread.
"""

from __future__ import annotations

import hashlib
import logging
import time
from importlib import metadata
from uuid import uuid4

from relayrl.data.arrow.schema import SCHEMA_VERSION
from relayrl.errors import ModelRefusedError, ProtocolError, ServerUnreachableError
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import PROTOCOL_VERSION, Kind, Message

_log = logging.getLogger("relayrl.servers.inference.upstream_models")
ASK_EVERY_S = 5.0
MAX_DELAY_S = 30.0
CALL_TIMEOUT_S = 10.0
MAX_MODEL_BYTES = 256 << 20


class UpstreamModels:
    """The models of the server at one address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._endpoint = ClientEndpoint(address, client_id=uuid4(), max_reply_bytes=MAX_MODEL_BYTES)
        self._have: dict[str, int] = {}
        self._is_welcome = False
        self._next_s, self._delay_s = 0.0, 1.0

    def fetch(self, call_timeout_s: float = CALL_TIMEOUT_S) -> list[bytes]:
        """Models that are newer than those given before; does not wait where nothing is due."""
        heard = self._is_welcome and any(each.get("topic") == "model" for each in self._endpoint.announcements())
        if not heard and time.monotonic() < self._next_s:
            return []
        try:
            found = self._fetch(call_timeout_s)
            self._delay_s = 1.0
            self._next_s = time.monotonic() + ASK_EVERY_S
            return found
        except (ServerUnreachableError, ProtocolError, ModelRefusedError) as error:
            _log.warning("no models from the server", extra={"server": self.address, "why": str(error)[:300]})
            self._is_welcome = False
            self._next_s = time.monotonic() + self._delay_s
            self._delay_s = min(2.0 * self._delay_s, MAX_DELAY_S)
            return []

    def close(self) -> None:
        self._endpoint.close()

    def _fetch(self, timeout_s: float) -> list[bytes]:
        if not self._is_welcome:
            self._greet(timeout_s)
        found = []
        for group, have in self._have.items():
            reply = self._called(Message(Kind.MODEL_GET, {"group": group, "have": have}), Kind.MODEL, timeout_s)
            version = reply.header.get("version")
            if type(version) is not int or not reply.payload or version == have:
                continue
            content = bytes(reply.payload[0])
            if hashlib.sha256(content).hexdigest() != reply.header.get("sha256"):
                raise ModelRefusedError(f"version {version} of {group!r} was damaged on its way")
            self._have[group] = version
            found.append(content)
        return found

    def _greet(self, timeout_s: float) -> None:
        header = {
            "protocol": PROTOCOL_VERSION,
            "client_id": str(self._endpoint.client_id),
            "role": "inference",
            "schema_version": SCHEMA_VERSION,
            "package_version": metadata.version("relayrl"),
            "behaviors": None,
        }
        welcome = self._called(Message(Kind.HELLO, header), Kind.WELCOME, timeout_s).header
        versions, announce = welcome.get("model_versions"), welcome.get("announce")
        if not isinstance(versions, dict):
            raise ProtocolError("malformed", "the server names no model versions")
        self._have = {str(group): self._have.get(str(group), -1) for group in versions}
        if isinstance(announce, str):
            self._endpoint.subscribe(announce, "model")
        self._is_welcome = True

    def _called(self, message: Message, expected: Kind, timeout_s: float) -> Message:
        reply = self._endpoint.call(message, timeout_s)
        if reply.kind is not expected:
            why = str(reply.header.get("message", reply.kind.name))[:300]
            raise ProtocolError("refused", f"{self.address} refused {message.kind.name}: {why}")
        return reply
