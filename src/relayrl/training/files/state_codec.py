"""A tree of tensors, arrays and plain values as one safetensors file with a checksum. Data goes in and out, never code.

The file is an ordinary safetensors file: any tool reads its tensors. Its metadata holds the rest,

    format, version    what it is
    tree               JSON: the tree, with the names of tensors where those were
    sha256             of everything else in the file

`torch.load(weights_only=True)` would hold the same data, but runs an unpickler on the file, finds damage only by chance and
needs torch to look inside. Tensors are streamed to the file, so that a large replay is not copied.

Not its job: where files lie and how many (`checkpoints`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.torch
import torch

from relayrl.errors import CheckpointError

FORMAT = "relayrl-checkpoint"
VERSION = 2
MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library accepts."""

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
_SCALARS = (str, int, float, bool, type(None))


def write_state(file: BinaryIO, state: dict[str, Any]) -> None:
    """Write `state`: nested dicts, lists and tuples of tensors, arrays, numbers, strings and None."""
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_encode(state, "", tensors), separators=(",", ":"))
    # Widest first: every tensor then lies at a multiple of its item's size.
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "version": str(VERSION), "tree": tree}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    digest = hashlib.sha256(_header_bytes(header))
    for tensor in tensors.values():
        digest.update(_bytes_of(tensor))
    header["__metadata__"]["sha256"] = digest.hexdigest()
    encoded = _header_bytes(header)
    encoded += b" " * (-len(encoded) % 8)
    file.write(struct.pack("<Q", len(encoded)))
    file.write(encoded)
    for tensor in tensors.values():
        file.write(_bytes_of(tensor))


def read_state(path: Path) -> dict[str, Any]:
    """The state that `write_state` put into a file; raises `CheckpointError` where a single bit of it has changed."""
    try:
        content = path.read_bytes()
        metadata = _verified_metadata(content)
        if metadata["version"] != str(VERSION):
            raise CheckpointVersionError(f"{path} has version {metadata['version']}; this RelayRL reads {VERSION}")
        tensors = safetensors.torch.load(content)
        tree = json.loads(metadata["tree"])
        state = _decode(tree, tensors)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is damaged: it holds no mapping")
    return state


def _verified_metadata(content: bytes) -> dict[str, Any]:
    if len(content) < 8:
        raise ValueError("it is cut short")
    (length,) = struct.unpack_from("<Q", content)
    if length > min(len(content) - 8, MAX_HEADER_BYTES):
        raise ValueError("it is cut short, or no checkpoint")
    header = json.loads(content[8 : 8 + length])
    metadata: dict[str, Any] = header["__metadata__"]
    if metadata.get("format") != FORMAT:
        raise ValueError("it is no checkpoint")
    claimed = metadata.pop("sha256")
    digest = hashlib.sha256(_header_bytes(header))
    digest.update(memoryview(content)[8 + length :])
    if digest.hexdigest() != claimed:
        raise ValueError("its checksum does not match")
    return metadata


class CheckpointVersionError(CheckpointError):
    """A checkpoint of another version: whole, but not readable here."""


def _header_bytes(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    # An empty tensor may have strides that no view can take.
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    return memoryview(flat)


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON for `value`: scalars stand for themselves, everything else is `[kind, content]`."""
    if isinstance(value, torch.Tensor):
        return ["torch", _add(value.detach().cpu(), path, tensors)]
    if isinstance(value, np.generic):
        return _encode(value.item(), path, tensors)
    if isinstance(value, np.ndarray):
        return ["numpy", _add(_as_tensor(value, path), path, tensors)]
    if isinstance(value, dict):
        items = [[_key(k, path), _encode(v, f"{path}/{k}" if path else str(k), tensors)] for k, v in value.items()]
        return ["dict", items]
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_encode(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]]
    if isinstance(value, _SCALARS):
        return value
    raise CheckpointError(
        f"state {path!r} is a {type(value).__name__}; keep tensors, arrays and plain values in a state"
    )


def _key(key: Any, path: str) -> Any:
    if not isinstance(key, _SCALARS):
        raise CheckpointError(f"state {path!r} has a key {key!r}; use strings or numbers")
    return key


def _as_tensor(array: np.ndarray[Any, Any], path: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except TypeError as error:
        raise CheckpointError(f"state {path!r} is an array of {array.dtype}, which a checkpoint cannot hold") from error


def _add(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    if tensor.dtype not in _DTYPES:
        raise CheckpointError(f"state {path!r} is a tensor of {tensor.dtype}, which a checkpoint cannot hold")
    name = next(name for name in _names(path) if name not in tensors)
    tensors[name] = tensor.contiguous()
    return name


def _names(path: str) -> Iterator[str]:
    yield path
    number = 2
    while True:
        yield f"{path}#{number}"
        number += 1


def _decode(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    kind, content = node
    if kind == "torch":
        return tensors[content]
    if kind == "numpy":
        return tensors[content].numpy()
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in content}
    if kind in ("list", "tuple"):
        items = [_decode(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"unknown kind {kind!r}")
