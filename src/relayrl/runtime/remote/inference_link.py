"""A client's connection to an inference server: asks for actions, models and deployments, each with a deadline.

Any thread may ask; one asks at a time. What went wrong is an error of ours: `ServerUnreachableError` where no answer came,
`InferenceError` where the server could not act, `ModelRefusedError` for a model that may not be loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any, TypeVar
from uuid import UUID

from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError, InferenceError, ModelRefusedError, ProtocolError, ServerUnreachableError
from relayrl.models.exports.exported import PolicyMetadata
from relayrl.models.exports.model_validation import validate_model
from relayrl.runtime.remote.act_messages import ActRequest, RemoteChoice, unpacked
from relayrl.runtime.remote.deployment import Deployment
from relayrl.runtime.remote.inference_place import InferenceServerSettings
from relayrl.runtime.requests.policy_model import OnnxPolicy, load_onnx
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.keys import ClientKeys
from relayrl.transport.messages import PROTOCOL_VERSION, Kind, Message

_log = logging.getLogger("relayrl.runtime.remote.inference_link")
MAX_REPLY_BYTES = 256 << 20
MAX_DESCRIPTION_BYTES = 4 << 20
T = TypeVar("T")


class InferenceLink:
    """See the module's docstring."""

    def __init__(self, settings: InferenceServerSettings, client_id: UUID) -> None:
        self.address, self.client_id, self.timeout_s = settings.address, client_id, settings.timeout_s
        self._lock = threading.Lock()
        keys = None
        if settings.key is not None and settings.server_key is not None:
            keys = ClientKeys.load(settings.key, settings.server_key)
        self._endpoint = ClientEndpoint(self.address, client_id=client_id, keys=keys, max_reply_bytes=MAX_REPLY_BYTES)
        self._is_closed = False
        self.on_deployment: Callable[[str, int], None] = lambda group, number: None
        """Called with every reply's group and deployment number."""

    def greet(self) -> dict[str, Deployment]:
        """Introduce this client; gives what is deployed of every group."""
        header = {
            "protocol": PROTOCOL_VERSION,
            "client_id": str(self.client_id),
            "role": "actor",
            "package_version": installed_version("relayrl"),
            "behaviors": None,
        }
        reply = self._call(Message(Kind.HELLO, header), Kind.WELCOME)
        return _deployments(reply)

    def status(self, returns: Sequence[tuple[str, int, float]], sequence: int) -> dict[str, Deployment]:
        """Report returns of episodes; gives what is deployed of every group."""
        header = {"client_id": str(self.client_id), "sequence": sequence, "returns": [list(each) for each in returns]}
        return _deployments(self._call(Message(Kind.STATUS, header), Kind.STATUS))

    def act(self, group: str, version: int, num_rows: int, arrays: dict[str, Array]) -> dict[str, Array]:
        """The outputs of one forward pass of exactly that version."""
        asked = ActRequest(group, version, "", num_rows, RemoteChoice.CLIENT, self.timeout_s, arrays)
        reply = self._call(asked.as_message(), Kind.ACTION)
        header = reply.header
        if header.get("version") != version:
            raise InferenceError(f"{self.address} answered with version {header.get('version')!r:.40}, not {version}")
        number = header.get("number")
        if type(number) is int:
            self.on_deployment(group, number)
        return _checked(lambda: unpacked(header.get("arrays"), reply.payload, num_rows), self.address)

    def describe(self, group: str, version: int) -> tuple[PolicyMetadata, bool]:
        """What a version's file says of itself, and whether it gives values."""
        header = {"group": group, "version": version, "describe": True}
        reply = self._call(Message(Kind.MODEL_GET, header), Kind.MODEL)
        if len(reply.payload) != 1 or len(reply.payload[0]) > MAX_DESCRIPTION_BYTES:
            raise ModelRefusedError(f"{self.address} describes version {version} of {group!r} by no or too many bytes")
        try:
            strings = json.loads(bytes(reply.payload[0]))
            if not isinstance(strings, dict) or not all(isinstance(value, str) for value in strings.values()):
                raise ValueError("no object of strings")
        except (ValueError, RecursionError) as error:
            raise ModelRefusedError(
                f"{self.address} describes version {version} of {group!r} wrongly: {error}"
            ) from error
        return PolicyMetadata.from_strings(strings), reply.header.get("has_value") is True

    def fetch(self, group: str, version: int, observation_space: Space, action_space: Space) -> OnnxPolicy:
        """A version's model, validated and loaded here."""
        reply = self._call(Message(Kind.MODEL_GET, {"group": group, "version": version}), Kind.MODEL)
        content = bytes(reply.payload[0]) if reply.payload else b""
        if hashlib.sha256(content).hexdigest() != reply.header.get("sha256"):
            raise ModelRefusedError(f"version {version} of {group!r} was damaged on its way from {self.address}")
        metadata = validate_model(content, observation_space=observation_space, action_space=action_space)
        if (metadata.group, metadata.policy_version) != (group, version):
            raise ModelRefusedError(f"{self.address} gave another model than version {version} of {group!r}")
        return load_onnx(content)

    def close(self) -> None:
        """Say good-bye; whoever asks later gets `ServerUnreachableError`."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                try:
                    self._endpoint.send(Message(Kind.BYE, {}), timeout_s=0.1)
                except ServerUnreachableError:
                    _log.debug("the server was gone already", extra={"server": self.address})
                self._endpoint.close(drain_s=0.2)

    def _call(self, message: Message, expected: Kind) -> Message:
        with self._lock:
            if self._is_closed:
                raise ServerUnreachableError(f"the connection to {self.address} was closed; start the agent again")
            reply = self._endpoint.call(message, self.timeout_s)
        if reply.kind is expected:
            return reply
        code, why = reply.header.get("code"), str(reply.header.get("message", reply.kind.name))[:1000]
        if code in ("observation", "mask"):
            raise ConfigError(f"{self.address}: {why}")
        raise InferenceError(f"{self.address} refused {message.kind.name} ({str(code)[:40]}): {why}")


def _deployments(reply: Message) -> dict[str, Deployment]:
    models: Any = reply.header.get("models")
    if not isinstance(models, dict):
        raise InferenceError("this is no inference server; give the address that `relayrl serve inference` prints")
    return {group: _checked(partial(Deployment.from_header, each), "the server") for group, each in models.items()}


def _checked(read: Callable[[], T], address: str) -> T:
    try:
        return read()
    except ProtocolError as error:
        raise InferenceError(f"{address} gave a reply that cannot be read: {error}") from error
