"""PNG pictures as Unity writes them: eight bits a channel, grey, RGB or RGBA, not interlaced (https://www.w3.org/TR/png).

The caller knows the size: a picture of another size is refused before it is unpacked, and unpacking stops at the bytes that a
picture of that size has. So a small file cannot become a large array.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import DecodeError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
_HEADER = struct.Struct(">IIBBBBB")
_CHUNK = struct.Struct(">I4s")


def decode_png(data: memoryview, height: int, width: int) -> tuple[Array, int]:
    """`[H, W, C]` uint8, and the bytes that the picture takes of `data`."""
    if bytes(data[: len(_SIGNATURE)]) != _SIGNATURE:
        raise DecodeError("a compressed observation is no PNG picture")
    position, header, packed = len(_SIGNATURE), None, []
    while True:
        if len(data) - position < _CHUNK.size + 4:
            raise DecodeError("a PNG picture ends before its last chunk")
        length, kind = _CHUNK.unpack_from(data, position)
        begin, end = position + _CHUNK.size, position + _CHUNK.size + length
        if end + 4 > len(data):
            raise DecodeError(f"a chunk of a PNG picture claims {length} bytes, beyond its end")
        if int.from_bytes(data[end : end + 4]) != zlib.crc32(data[begin:end], zlib.crc32(kind)):
            raise DecodeError("a PNG picture has a wrong checksum")
        position = end + 4
        if kind == b"IHDR":
            header = _checked_header(data[begin:end], height, width)
        elif kind == b"IDAT":
            packed.append(bytes(data[begin:end]))
        elif kind == b"IEND":
            break
    if header is None:
        raise DecodeError("a PNG picture has no header")
    return _unfiltered(_unpacked(b"".join(packed), height * (1 + width * header)), height, width, header), position


def _checked_header(data: memoryview, height: int, width: int) -> int:
    """The number of channels."""
    if len(data) != _HEADER.size:
        raise DecodeError("the header of a PNG picture is damaged")
    found_width, found_height, depth, colour, *_, interlace = _HEADER.unpack(data)
    if (found_height, found_width) != (height, width):
        raise DecodeError(f"a PNG picture is {found_width} × {found_height}, its observation {width} × {height}")
    if depth != 8 or colour not in _CHANNELS or interlace:
        raise DecodeError(f"PNG pictures of {depth} bits, colour type {colour} and interlace {interlace} are not read")
    return _CHANNELS[colour]


def _unpacked(packed: bytes, num_bytes: int) -> Array:
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(packed, num_bytes + 1)
    except zlib.error as error:
        raise DecodeError(f"a PNG picture cannot be unpacked: {error}") from error
    if len(rows) != num_bytes:
        what = "more" if len(rows) > num_bytes else f"{len(rows)}"
        raise DecodeError(f"a PNG picture unpacks to {what} bytes, and its size takes {num_bytes}")
    return np.frombuffer(rows, np.uint8)


def _unfiltered(rows: Array, height: int, width: int, channels: int) -> Array:
    """Undo the five filters, row by row: none, left, up, average, Paeth."""
    lines = rows.reshape(height, 1 + width * channels)
    out = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y in range(height):
        kind, line = int(lines[y, 0]), lines[y, 1:]
        if kind == 0:
            out[y] = line
        elif kind == 1:
            out[y] = np.cumsum(line.reshape(width, channels), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            out[y] = line + above  # modulo 256
        elif kind in (3, 4):
            predict = _paeth if kind == 4 else _average
            out[y] = _predicted(line.tolist(), above.tolist(), channels, predict)
        else:
            raise DecodeError(f"a PNG picture has filter {kind}, and there are five")
        above = out[y]
    return out.reshape(height, width, channels)


def _predicted(line: list[int], above: list[int], channels: int, predict: Callable[[int, int, int], int]) -> list[int]:
    """Filters whose next pixel needs the one before."""
    found = [0] * channels  # left of the row
    corners = [0] * channels + above
    for i, value in enumerate(line):
        found.append((value + predict(found[i], above[i], corners[i])) & 0xFF)
    return found[channels:]


def _average(left: int, up: int, corner: int) -> int:
    del corner
    return (left + up) >> 1


def _paeth(left: int, up: int, corner: int) -> int:
    """The neighbour that is nearest to left + up − corner; left, then up, where several are."""
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner
