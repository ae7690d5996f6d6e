"""Reads the graph of an ONNX file: nodes, weights and the names of outputs, without the `onnx` package.

An ONNX file is a protocol buffer, which is a list of `(field number, value)` pairs. Only the fields that a policy's graph
needs are read; a tensor of another kind than float32 or int64, or one that lies in another file, is left out.

Not its job: what the graph computes (`onnx_perceptron`), or running it (`exported`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import DecodeError

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_VALUE_NAME = 1
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR = 1, 2, 3, 5
_TENSOR_DIM, _TENSOR_KIND, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_TENSOR_KINDS: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 7: np.dtype("<i8")}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Value = int | bytes


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, float | int | Array]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """Operations in an order in which they can be run."""

    nodes: list[OnnxNode] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def read_graph(content: bytes) -> OnnxGraph:
    """The graph of a file's content; `DecodeError` where it is no ONNX file."""
    graph = OnnxGraph()
    try:
        for number, value in _fields(_only(content, _MODEL_GRAPH)):
            if number == _GRAPH_NODE:
                graph.nodes.append(_node(_bytes(value)))
            elif number == _GRAPH_INITIALIZER:
                name, array = _tensor(_bytes(value))
                if array is not None:
                    graph.weights[name] = array
            elif number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
                names = graph.inputs if number == _GRAPH_INPUT else graph.outputs
                names.append(_only(_bytes(value), _VALUE_NAME).decode())
    except (IndexError, UnicodeDecodeError, struct.error, ValueError) as error:
        raise DecodeError(f"not an ONNX file: {error}") from error
    return graph


def _node(content: bytes) -> OnnxNode:
    inputs, outputs, attributes, op = [], [], {}, ""
    for number, value in _fields(content):
        if number == _NODE_INPUT:
            inputs.append(_bytes(value).decode())
        elif number == _NODE_OUTPUT:
            outputs.append(_bytes(value).decode())
        elif number == _NODE_OP:
            op = _bytes(value).decode()
        elif number == _NODE_ATTRIBUTE:
            name, meaning = _attribute(_bytes(value))
            if meaning is not None:
                attributes[name] = meaning
    return OnnxNode(op, tuple(inputs), tuple(outputs), attributes)


def _attribute(content: bytes) -> tuple[str, float | int | Array | None]:
    name, meaning = "", None
    for number, value in _fields(content):
        if number == _ATTRIBUTE_NAME:
            name = _bytes(value).decode()
        elif number == _ATTRIBUTE_FLOAT:
            (meaning,) = struct.unpack("<f", _bytes(value))
        elif number == _ATTRIBUTE_INT:
            meaning = _signed(value)
        elif number == _ATTRIBUTE_TENSOR:
            _, meaning = _tensor(_bytes(value))
    return name, meaning


def _tensor(content: bytes) -> tuple[str, Array | None]:
    shape: list[int] = []
    name, kind, raw = "", 0, None
    for number, value in _fields(content):
        if number == _TENSOR_DIM:
            shape += [_signed(value)] if isinstance(value, int) else _varints(value)
        elif number == _TENSOR_KIND and isinstance(value, int):
            kind = value
        elif number == _TENSOR_NAME:
            name = _bytes(value).decode()
        elif number == _TENSOR_RAW:
            raw = _bytes(value)
    if raw is None or kind not in _TENSOR_KINDS:
        return name, None
    return name, np.frombuffer(raw, _TENSOR_KINDS[kind]).reshape(shape)


def _fields(content: bytes) -> Iterator[tuple[int, Value]]:
    """Every field with its number: an int, or bytes of a string, message, float or packed list."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(content, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"field {number} is of unknown kind {kind}")
        if at + size > len(content):
            raise ValueError(f"field {number} ends after its message")
        yield number, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varints(content: bytes) -> list[int]:
    values, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        values.append(_signed(value))
    return values


def _signed(value: Value) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes in place of a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of bytes")
    return value


def _only(content: bytes, wanted: int) -> bytes:
    for number, value in _fields(content):
        if number == wanted:
            return _bytes(value)
    raise ValueError(f"field {wanted} is missing")
