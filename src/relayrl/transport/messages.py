"""A message and its frames; `docs/protocol.md` describes them for other languages.

    frame 0    magic "RLY", u8 version, u8 kind, u8 flags (0), u16 reserved (0), u64 request number; big-endian, 16 bytes
    frame 1    UTF-8 JSON, one object of at most 64 KiB
    frame 2…   payload: any bytes; the JSON header says what they are

`decode` takes bytes of strangers: whatever is wrong with them is a `ProtocolError`, and nothing is allocated by their word.

Not its job: sockets (`server_endpoint`, `client_endpoint`), and what a kind's header holds, which its two ends check.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

from relayrl.errors import ProtocolError

PROTOCOL_VERSION = 1
MAX_HEADER_BYTES = 64 << 10
MAX_HEADER_DEPTH = 32
MAX_HEADER_KEYS = 4096
MAX_PAYLOADS = 256

_FIXED = struct.Struct(">3sBBBHQ")
_MAGIC = b"RLY"

Bytes = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a message is. Numbers never change; a kind of a later version is refused, not guessed."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    MODEL_GET = 4
    MODEL = 5
    TRAJECTORY = 6
    ACK = 7
    ACT = 8
    ACTION = 9
    PING = 10
    PONG = 11
    STATUS = 12
    BYE = 13
    ERROR = 14
    ANNOUNCE = 15


_KINDS = {int(kind): kind for kind in Kind}


class Message(NamedTuple):
    """One message. A reply has the request's number; 0 is for messages that nobody asked for."""

    kind: Kind
    header: dict[str, Any]
    payload: tuple[Bytes, ...] = ()
    number: int = 0


def encode(message: Message) -> list[Bytes]:
    """The frames of a message; the payload is not copied. `ProtocolError` if the other side would refuse them."""
    kind, header, payload, number = message
    try:
        text = _ENCODE(header).encode()
        fixed = _FIXED.pack(_MAGIC, PROTOCOL_VERSION, kind, 0, 0, number)
    except (TypeError, ValueError, RecursionError, struct.error) as error:
        raise ProtocolError("malformed", f"a header of {kind!r} cannot be encoded: {error}") from error
    if len(text) > MAX_HEADER_BYTES:
        raise ProtocolError("malformed", f"a JSON header of {len(text)} bytes; at most {MAX_HEADER_BYTES} are allowed")
    if len(payload) > MAX_PAYLOADS:
        raise ProtocolError("malformed", f"{len(payload)} payload frames; at most {MAX_PAYLOADS} are allowed")
    return [fixed, text, *payload]


def decode(frames: Sequence[Bytes]) -> Message:
    """The message that the frames hold; its payload are the frames themselves. `ProtocolError` for anything else."""
    kind, number = _read_fixed(frames[0] if frames else b"")
    try:
        if len(frames) < 2:
            raise ProtocolError("malformed", "a message of one frame; the JSON header is missing")
        if len(frames) > 2 + MAX_PAYLOADS:
            raise ProtocolError("malformed", f"{len(frames) - 2} payload frames; at most {MAX_PAYLOADS} are allowed")
        if kind not in _KINDS:
            raise ProtocolError("malformed", f"kind {kind} does not exist in protocol version {PROTOCOL_VERSION}")
        return Message(_KINDS[kind], _read_header(frames[1]), tuple(frames[2:]), number)
    except ProtocolError as error:
        error.number = number
        raise


def _read_fixed(frame: Bytes) -> tuple[int, int]:
    """Kind and request number of the first frame; `ProtocolError` if it is none, or of another version."""
    if len(frame) != _FIXED.size:
        raise ProtocolError("malformed", f"a first frame of {len(frame)} bytes instead of {_FIXED.size}")
    magic, version, kind, flags, reserved, number = _FIXED.unpack(frame)
    if magic != _MAGIC:
        raise ProtocolError("malformed", "the first frame does not begin with RLY")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            "version",
            f"protocol version {version}; this side speaks version {PROTOCOL_VERSION}: install a RelayRL of the same "
            "protocol version on both sides",
            number,
        )
    if flags or reserved:
        raise ProtocolError("malformed", "flags and reserved bytes of the first frame must be 0", number)
    return kind, number


def _read_header(frame: Bytes) -> dict[str, Any]:
    """The object that a JSON frame holds."""
    if len(frame) > MAX_HEADER_BYTES:
        raise ProtocolError("malformed", f"a JSON header of {len(frame)} bytes; at most {MAX_HEADER_BYTES} are allowed")
    raw = bytes(frame)
    try:
        text = raw.decode()
        header, end = _DECODER.raw_decode(text)
        if end != len(text) and text[end:].strip(" \t\n\r"):
            raise ValueError("something follows the object")
        if b"\\u" in raw:  # an escape may be half of a character; whoever writes it out again would fail
            json.dumps(header, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolError("malformed", f"the header is no JSON: {str(error)[:200]}") from error
    if type(header) is not dict:
        raise ProtocolError("malformed", "the JSON header is no object")
    # The numbers of brackets and colons bound depth and keys from above; only where that is not enough, look.
    if raw.count(b"{") + raw.count(b"[") > MAX_HEADER_DEPTH or raw.count(b":") > MAX_HEADER_KEYS:
        _check_shape(header)
    return header


def _check_shape(header: dict[str, Any]) -> None:
    level: list[Any] = [header]
    depth = num_keys = 0
    while level:
        depth += 1
        num_keys += sum(len(value) for value in level if isinstance(value, dict))
        if depth > MAX_HEADER_DEPTH or num_keys > MAX_HEADER_KEYS:
            raise ProtocolError(
                "malformed", f"a JSON header of more than {MAX_HEADER_DEPTH} levels or {MAX_HEADER_KEYS} keys"
            )
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
