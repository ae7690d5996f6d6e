"""Images as ML-Agents compresses them: PNG files one behind the other, whose channels make up one observation.

Sizes are read from the headers and compared with what was announced before a pixel is decompressed, and only the chunks that
hold pixels are handed on: an image cannot be larger than its observation.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from relayrl.data.trees import Array
from relayrl.errors import DecodeError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEPT = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def decode_images(data: bytes, shape: tuple[int, ...], mapping: Sequence[int]) -> Array:
    """uint8 `shape` [C, H, W] or [H, W, C]: which of the two is seen from the size of the images.

    `mapping` says which channel each channel of the images belongs to, -1 for none; those of one channel are averaged. Without
    it the channels are taken as they come, and averaged where the observation has one.
    """
    planes: list[Array] = []
    is_first = True
    for width, height, png in _split(data):
        is_first = shape[1:] == (height, width)
        if not is_first and shape[:2] != (height, width):
            raise DecodeError(f"a compressed image is {width}x{height}, its observation has the shape {list(shape)}")
        planes += list(np.moveaxis(_pixels(png), -1, 0))
        if len(planes) > max(len(mapping), shape[0] if is_first else shape[2]) + 3:
            raise DecodeError(f"a compressed image has {len(planes)} channels or more, its observation {list(shape)}")
    if not planes:
        raise DecodeError("a compressed image is empty")
    num_channels = shape[0] if is_first else shape[2]
    channels = _mapped(planes, mapping, num_channels) if mapping else _as_they_come(planes, num_channels)
    return np.ascontiguousarray(np.stack(channels, axis=0 if is_first else -1))


def _mapped(planes: list[Array], mapping: Sequence[int], num_channels: int) -> list[Array]:
    if len(mapping) != len(planes) or {number for number in mapping if number >= 0} != set(range(num_channels)):
        raise DecodeError(
            f"the channel mapping {list(mapping)[:32]} does not make {num_channels} channels of the {len(planes)} that came"
        )
    parts: list[list[Array]] = [[] for _ in range(num_channels)]
    for plane, number in zip(planes, mapping, strict=True):
        if number >= 0:
            parts[number].append(plane)
    return [_mean(part) for part in parts]


def _as_they_come(planes: list[Array], num_channels: int) -> list[Array]:
    if num_channels == 1:
        return [_mean(planes[:3])]
    if len(planes) < num_channels:
        raise DecodeError(f"a compressed image has {len(planes)} channels, its observation {num_channels}")
    return planes[:num_channels]


def _mean(planes: list[Array]) -> Array:
    return planes[0] if len(planes) == 1 else np.rint(np.mean(planes, axis=0)).astype(np.uint8)


def _pixels(png: bytes) -> Array:
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            shown = image if image.mode in _CHANNELS else image.convert("RGB")
            return np.asarray(shown, np.uint8).reshape(image.height, image.width, _CHANNELS[shown.mode])
    except (OSError, ValueError, SyntaxError, zlib.error) as error:
        raise DecodeError(f"a compressed image is no PNG that can be read: {error}") from error


def _split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Width, height and bytes of each PNG file, with its critical chunks alone."""
    at = 0
    while at < len(data):
        if data[at : at + 8] != _SIGNATURE:
            raise DecodeError(f"a compressed image has no PNG at byte {at} of {len(data)}")
        at += 8
        kept, size = [_SIGNATURE], None
        while True:
            length = struct.unpack_from(">I", data, at)[0] if len(data) - at >= 12 else len(data)
            if length > len(data) - at - 12:
                raise DecodeError(f"a compressed image is cut off at byte {at} of {len(data)}")
            kind = data[at + 4 : at + 8]
            if size is None:
                if kind != b"IHDR" or length != 13:
                    raise DecodeError("a compressed image has no PNG header")
                size = struct.unpack_from(">II", data, at + 8)
            if kind in _KEPT:
                kept.append(data[at : at + 12 + length])
            at += 12 + length
            if kind == b"IEND":
                break
        yield size[0], size[1], b"".join(kept)
