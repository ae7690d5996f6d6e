"""TensorBoard's event files, encoded here: importing `tensorboard` to write a number would take longer than many updates.

A file is a sequence of records (length, checksum, content, checksum), and each content is an `Event` of TensorBoard's
`event.proto`: pairs of a field's number and its value, as protocol buffers write them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

FILE_VERSION = "brain.Event:2"
# Field numbers of event.proto and summary.proto, and their kinds on the wire.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_SUMMARY_VALUE, _VALUE_TAG, _VALUE_NUMBER, _LOG_STATUS = 1, 1, 2, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STARTED = 1
_CASTAGNOLI = 0x82F63B78
_LARGEST = 3.4028234663852886e38
"""Of float32; TensorBoard's own writer, too, makes infinities of what is larger."""


def first_record(wall_time_s: float) -> bytes:
    """What every file begins with."""
    return _record(_time(wall_time_s) + _bytes(_FILE_VERSION, FILE_VERSION.encode()))


def restart_record(wall_time_s: float, first_step: int) -> bytes:
    """TensorBoard then hides what earlier files say of `first_step` and later ones."""
    status = _key(_LOG_STATUS, _VARINT) + _varint(_STARTED)
    return _record(_time(wall_time_s) + _step(first_step) + _bytes(_SESSION_LOG, status))


def scalars_record(wall_time_s: float, step: int, row: Mapping[str, float]) -> bytes:
    """A number for each name."""
    values = b"".join(_bytes(_SUMMARY_VALUE, _scalar(name, number)) for name, number in row.items())
    return _record(_time(wall_time_s) + _step(step) + _bytes(_SUMMARY, values))


def _scalar(name: str, number: float) -> bytes:
    if abs(number) > _LARGEST:
        number = math.copysign(math.inf, number)
    return _bytes(_VALUE_TAG, name.encode()) + _key(_VALUE_NUMBER, _FIXED32) + struct.pack("<f", number)


def _time(wall_time_s: float) -> bytes:
    return _key(_WALL_TIME, _FIXED64) + struct.pack("<d", wall_time_s)


def _step(step: int) -> bytes:
    return _key(_STEP, _VARINT) + _varint(step)


def _bytes(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, turned and shifted so that a checksum of checksums still tells something."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ _CASTAGNOLI * (byte & 1)
        table.append(byte)
    return table


_TABLE = _table()
