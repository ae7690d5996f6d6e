"""Protocol buffers by hand, for the simulator that plays Unity's part: it shares nothing with RelayRL's messages.

Fields have numbers instead of names, as in `encode({8: True, 10: 7})`.
"""

from __future__ import annotations

import struct
from typing import Any


def encode(fields: dict[int, Any]) -> bytes:
    """The bytes of a message: int and bool as varints, float as 32 bits, str, bytes and nested messages by length, lists packed
    where they hold numbers."""
    return b"".join(_field(number, value) for number, value in sorted(fields.items()))


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, bool | int):
        return _varint(number << 3) + _varint(int(value) & (1 << 64) - 1) if value else b""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value) if value else b""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value if value else b""
    if isinstance(value, list):
        if value and isinstance(value[0], bytes | str):
            return b"".join(_message(number, part if isinstance(part, bytes) else part.encode()) for part in value)
        packed = b"".join(
            struct.pack("<f", part) if isinstance(part, float) else _varint(int(part) & (1 << 64) - 1) for part in value
        )
        return _message(number, packed) if packed else b""
    raise TypeError(value)


def message(number: int, data: bytes) -> bytes:
    """A nested message, also where it is empty."""
    return _message(number, data)


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes) -> dict[int, list[Any]]:
    """Fields by number, each a list of what came: varints, 4-byte floats, and bytes for the rest."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == 0:
            value, at = _read_varint(data, at)
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif tag & 7 == 2:
            length, at = _read_varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {tag & 7}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def packed_floats(data: list[bytes]) -> list[float]:
    return [number for part in data for (number,) in struct.iter_unpack("<f", part)]


def packed_ints(data: list[bytes]) -> list[int]:
    numbers = []
    for part in data:
        at = 0
        while at < len(part):
            number, at = _read_varint(part, at)
            numbers.append(number - (1 << 64) if number >> 63 else number)
    return numbers


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
