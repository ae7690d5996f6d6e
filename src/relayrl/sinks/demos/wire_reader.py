"""Fields of a Protocol Buffers message, from its wire format, within bounds.

https://protobuf.dev/programming-guides/encoding: a message is a row of (tag, value); a tag names the field and the kind of its
value. Only lengths that the bytes at hand hold are believed, so that no message makes a reader allocate more than its own size.
Messages inside of messages are bytes until somebody asks for their fields: nothing recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import DecodeError

MAX_VARINT_BYTES = 10
MAX_FIELDS = 1 << 20
"""Of a message: each costs a hundred times the bytes that it has in the file."""
_INT32_BITS = 32


class Wire(IntEnum):
    """Kinds of values; groups (3, 4) are long gone from the format and refused."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class Message:
    """The fields of one message, by number; of a field that is given several times the last counts."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        """`what` names the message in errors."""
        self._data, self._what = memoryview(data), what
        self._fields: dict[int, list[tuple[Wire, Any]]] = {}
        for i, (number, wire, value) in enumerate(self._read()):
            if i == MAX_FIELDS:
                raise self._error(f"it has more than {MAX_FIELDS} fields")
            self._fields.setdefault(number, []).append((wire, value))

    def int32(self, number: int) -> int:
        """A signed number; 0 where it is not there."""
        given = self._values(number, Wire.VARINT)
        return _signed(int(given[-1])) if given else 0

    def float32(self, number: int) -> float:
        """A number; 0 where it is not there."""
        given = self._values(number, Wire.FIXED32)
        return float(np.frombuffer(given[-1], "<f4")[0]) if given else 0.0

    def bytes(self, number: int) -> memoryview:
        """Bytes, or a message; empty where there are none."""
        given = self._values(number, Wire.BYTES)
        return memoryview(given[-1]) if given else memoryview(b"")

    def text(self, number: int) -> str:
        """A string."""
        try:
            return str(self.bytes(number), "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"field {number} is no text") from error

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return number in self._fields

    def messages(self, number: int) -> list[memoryview]:
        """All values of a repeated message."""
        return [memoryview(given) for given in self._values(number, Wire.BYTES)]

    def floats(self, number: int) -> Array:
        """A repeated float, packed or one by one."""
        parts = []
        for wire, value in self._fields.get(number, []):
            if wire not in (Wire.BYTES, Wire.FIXED32) or len(value) % 4:
                raise self._error(f"field {number} is no row of floats")
            parts.append(np.frombuffer(value, "<f4"))
        return np.concatenate(parts).astype(np.float32) if parts else np.empty(0, np.float32)

    def int32s(self, number: int, most: int) -> list[int]:
        """A repeated int32 or bool, packed or one by one; at most so many."""
        found: list[int] = []
        for wire, value in self._fields.get(number, []):
            if wire is Wire.VARINT:
                found.append(_signed(int(value)))
            elif wire is Wire.BYTES:
                packed, position = memoryview(value), 0
                while position < len(packed):
                    one, position = self._varint(packed, position)
                    found.append(_signed(one))
                    if len(found) > most:
                        break
            else:
                raise self._error(f"field {number} is no row of integers")
            if len(found) > most:
                raise self._error(f"field {number} has more than {most} entries")
        return found

    def _values(self, number: int, wire: Wire) -> list[Any]:
        given = self._fields.get(number, [])
        if any(kind is not wire for kind, _ in given):
            raise self._error(f"field {number} is not of the kind {wire.name.lower()}")
        return [value for _, value in given]

    def _read(self) -> Iterator[tuple[int, Wire, Any]]:
        data, position = self._data, 0
        while position < len(data):
            tag, position = self._varint(data, position)
            number, kind = tag >> 3, tag & 7
            if kind not in Wire.__members__.values() or not 0 < number < 1 << 29:
                raise self._error(f"tag {tag} at byte {position} is none of the format")
            wire = Wire(kind)
            if wire is Wire.VARINT:
                value, position = self._varint(data, position)
                yield number, wire, value
                continue
            length = {Wire.FIXED64: 8, Wire.FIXED32: 4}.get(wire)
            if length is None:
                length, position = self._varint(data, position)
            if length > len(data) - position:
                raise self._error(f"field {number} claims {length} bytes where {len(data) - position} are left")
            yield number, wire, data[position : position + length]
            position += length

    def _varint(self, data: memoryview, position: int) -> tuple[int, int]:
        return varint(data, position, self._what)

    def _error(self, reason: str) -> DecodeError:
        return DecodeError(f"{self._what} is damaged: {reason}")


def varint(data: memoryview, position: int, what: str) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    value = 0
    for i in range(MAX_VARINT_BYTES):
        if position + i >= len(data):
            raise DecodeError(f"{what} is damaged: it ends inside a number")
        byte = data[position + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & ((1 << 64) - 1), position + i + 1
    raise DecodeError(f"{what} is damaged: a number has more than {MAX_VARINT_BYTES} bytes")


def _signed(value: int) -> int:
    """An int32 from its 64-bit varint: negative ones have all upper bits set."""
    low = value & ((1 << _INT32_BITS) - 1)
    return low - (1 << _INT32_BITS) if low >> (_INT32_BITS - 1) else low
