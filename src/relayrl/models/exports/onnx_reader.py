"""Reads the parts of an ONNX file that a policy needs, strictly and within bounds. Needs numpy only.

An ONNX file is a protobuf message. This reader knows the fields that exported policies have, by their numbers in `onnx.proto`,
and refuses every other one: control flow (sub-graphs), functions, external data, sparse tensors and strings in tensors do not
exist here. So what was checked is all that onnxruntime, which reads the same bytes, can find. Numbers of tensors are not
decoded; they are views of the bytes.

Not its job: what a good policy looks like (`model_validation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from relayrl.errors import ModelRefusedError

MAX_FIELDS = 1 << 17
"""Most fields of a file, all messages together; an exported policy has some thousands."""
MAX_TEXT = 1 << 16
"""Longest name or text, metadata apart."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PACKED = {"varints": _VARINT, "fixed32s": _FIXED32, "fixed64s": _FIXED64}
_WIRE = {"varint": _VARINT, "fixed32": _FIXED32}

Schema: TypeAlias = dict[int, tuple[str, Any]]
"""Field number to name and kind: `varint`, `fixed32`, `text`, `bytes`, a packed kind, a schema; in a list where it repeats."""
Fields: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[int, int]
"""Begin and end in the file."""

_ENTRY: Schema = {1: ("key", "text"), 2: ("value", "bytes")}
_OPSET: Schema = {1: ("domain", "text"), 2: ("version", "varint")}
_DIMENSION: Schema = {1: ("dim_value", "varint"), 2: ("dim_param", "text"), 3: ("denotation", "text")}
_SHAPE: Schema = {1: ("dim", [_DIMENSION])}
_TENSOR_TYPE: Schema = {1: ("elem_type", "varint"), 2: ("shape", _SHAPE)}
_TYPE: Schema = {1: ("tensor_type", _TENSOR_TYPE), 6: ("denotation", "text")}
_VALUE: Schema = {1: ("name", "text"), 2: ("type", _TYPE), 3: ("doc_string", "text"), 4: ("metadata_props", [_ENTRY])}
_TENSOR: Schema = {
    1: ("dims", "varints"),
    2: ("data_type", "varint"),
    4: ("float_data", "fixed32s"),
    5: ("int32_data", "varints"),
    7: ("int64_data", "varints"),
    8: ("name", "text"),
    9: ("raw_data", "bytes"),
    10: ("double_data", "fixed64s"),
    11: ("uint64_data", "varints"),
    12: ("doc_string", "text"),
}
_ATTRIBUTE: Schema = {
    1: ("name", "text"),
    2: ("f", "fixed32"),
    3: ("i", "varint"),
    4: ("s", "text"),
    5: ("t", _TENSOR),
    7: ("floats", "fixed32s"),
    8: ("ints", "varints"),
    13: ("doc_string", "text"),
    20: ("type", "varint"),
}
_NODE: Schema = {
    1: ("input", ["text"]),
    2: ("output", ["text"]),
    3: ("name", "text"),
    4: ("op_type", "text"),
    5: ("attribute", [_ATTRIBUTE]),
    6: ("doc_string", "text"),
    7: ("domain", "text"),
    9: ("metadata_props", [_ENTRY]),
}
_GRAPH: Schema = {
    1: ("node", [_NODE]),
    2: ("name", "text"),
    5: ("initializer", [_TENSOR]),
    10: ("doc_string", "text"),
    11: ("input", [_VALUE]),
    12: ("output", [_VALUE]),
    13: ("value_info", [_VALUE]),
    16: ("metadata_props", [_ENTRY]),
}
_MODEL: Schema = {
    1: ("ir_version", "varint"),
    2: ("producer_name", "text"),
    3: ("producer_version", "text"),
    4: ("domain", "text"),
    5: ("model_version", "varint"),
    6: ("doc_string", "text"),
    7: ("graph", _GRAPH),
    8: ("opset_import", [_OPSET]),
    14: ("metadata_props", [_ENTRY]),
}
_ITEM_BYTES = {1: 4, 2: 1, 3: 1, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8}
"""Bytes of a number by ONNX's data type: float, (u)int8, int16, int32, int64, bool, float16, double."""
_TYPED = {1: "float_data", 6: "int32_data", 2: "int32_data", 3: "int32_data", 5: "int32_data", 9: "int32_data"}
_TYPED |= {10: "int32_data", 7: "int64_data", 11: "double_data"}


@dataclass(frozen=True, slots=True)
class Operator:
    """One node of the graph."""

    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphValue:
    """An input or output: its ONNX data type, and its axes, where None is free."""

    name: str
    data_type: int
    axes: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxContent:
    """What a file says, apart from its numbers."""

    ir_version: int
    opsets: dict[str, int]
    metadata: dict[str, str]
    operators: tuple[Operator, ...]
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    weights: dict[str, int]
    """Bytes of every tensor that stands in the file, by its name in the graph."""
    number_places: tuple[Place, ...] = field(compare=False, default=())
    """Where the file holds the raw numbers of its initializers."""
    metadata_places: dict[str, Place] = field(compare=False, default_factory=dict)
    """Where it holds the values of its metadata, by key."""


def read_onnx(content: bytes) -> OnnxContent:
    """The content of a file; `ModelRefusedError` says what is wrong with it."""
    model = _Reader().message(memoryview(content), _MODEL, "model")
    graph = model.get("graph")
    if graph is None:
        raise ModelRefusedError("the file has no graph; it is no ONNX model")
    nodes = graph.get("node", [])
    weights = [(tensor.get("name", ""), _num_bytes(tensor)) for tensor in graph.get("initializer", ())]
    for node in nodes:
        tensors = [attribute["t"] for attribute in node.get("attribute", ()) if "t" in attribute]
        weights += [(name, sum(map(_num_bytes, tensors))) for name in node.get("output", ()) if tensors]
    opsets = [(entry.get("domain", ""), entry.get("version", 0)) for entry in model.get("opset_import", ())]
    return OnnxContent(
        ir_version=model.get("ir_version", 0),
        opsets=_unique(opsets, "opset"),
        metadata=_unique([_entry(entry) for entry in model.get("metadata_props", ())], "metadata key"),
        operators=tuple(
            Operator(
                node.get("op_type", ""),
                node.get("domain", ""),
                tuple(node.get("input", ())),
                tuple(node.get("output", ())),
            )
            for node in nodes
        ),
        inputs=tuple(_value(each) for each in graph.get("input", ())),
        outputs=tuple(_value(each) for each in graph.get("output", ())),
        weights=_unique(weights, "tensor"),
        number_places=tuple(
            _place(tensor["raw_data"], content) for tensor in graph.get("initializer", ()) if "raw_data" in tensor
        ),
        metadata_places={
            entry.get("key", ""): _place(entry["value"], content)
            for entry in model.get("metadata_props", ())
            if "value" in entry
        },
    )


def _place(part: memoryview, content: bytes) -> Place:
    """Where a part lies in the file that it is a view of."""
    first, begin = (np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (content, part))
    return begin - first, begin - first + len(part)


class _Reader:
    """Reads messages by their schema, with a budget of fields."""

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def message(self, data: memoryview, schema: Schema, where: str) -> Fields:
        found: Fields = {}
        start = 0
        while start < len(data):
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ModelRefusedError(f"the file has more than {MAX_FIELDS} fields")
            key, start = _varint(data, start)
            number, wire = key >> 3, key & 7
            if number not in schema:
                raise ModelRefusedError(f"the {where} has field {number}, which policies do not have")
            name, kind = schema[number]
            value, start = self._value(data, start, wire, kind, f"{where}.{name}")
            if isinstance(kind, list) or (isinstance(kind, str) and kind in _PACKED):
                found.setdefault(name, []).append(value)
            elif name in found:  # parsers merge or replace these, each in its own way
                raise ModelRefusedError(f"the {where} has {name!r} twice")
            else:
                found[name] = value
        return found

    def _value(self, data: memoryview, start: int, wire: int, kind: Any, where: str) -> tuple[Any, int]:
        kind = kind[0] if isinstance(kind, list) else kind
        if isinstance(kind, str) and kind in _PACKED and wire == _PACKED[kind]:  # one number, not packed
            end = _varint(data, start)[1] if wire == _VARINT else start + (4 if wire == _FIXED32 else 8)
            return _slice(data, start, end, where), end
        if isinstance(kind, str) and kind in _WIRE:
            if wire != _WIRE[kind]:
                raise ModelRefusedError(f"{where} has wire type {wire}")
            if kind == "varint":
                return _varint(data, start)
            return _slice(data, start, start + 4, where), start + 4
        if wire != _BYTES:
            raise ModelRefusedError(f"{where} has wire type {wire}")
        length, start = _varint(data, start)
        part, end = _slice(data, start, start + length, where), start + length
        if isinstance(kind, dict):
            return self.message(part, kind, where), end
        return (_text(part, where) if kind == "text" else part), end


def _varint(data: memoryview, start: int) -> tuple[int, int]:
    result = 0
    for i in range(10):
        if start + i >= len(data):
            raise ModelRefusedError("the file ends inside a number; it is truncated, or no ONNX model")
        byte = data[start + i]
        result |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, start + i + 1
    raise ModelRefusedError("the file has a number of more than 64 bits; it is no ONNX model")


def _slice(data: memoryview, start: int, end: int, where: str) -> memoryview:
    if end > len(data):
        raise ModelRefusedError(f"{where} is longer than what holds it; the file is truncated, or no ONNX model")
    return data[start:end]


def _text(part: memoryview, where: str, max_bytes: int = MAX_TEXT) -> str:
    if len(part) > max_bytes:
        raise ModelRefusedError(f"{where} is a text of {len(part)} bytes, more than {max_bytes}")
    try:
        return str(part, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelRefusedError(f"{where} is not UTF-8") from error


def _entry(entry: Fields) -> tuple[str, str]:
    key, value = entry.get("key", ""), entry.get("value", memoryview(b""))
    return key, _text(value, f"metadata {key[:80]!r}", max_bytes=len(value))


def _unique(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ModelRefusedError(f"the file has a {what} twice")
    return found


def _value(value: Fields) -> GraphValue:
    tensor = value.get("type", {}).get("tensor_type")
    if tensor is None:
        raise ModelRefusedError(f"{value.get('name', '')[:80]!r} is no tensor")
    axes = None
    if "shape" in tensor:
        axes = tuple(axis.get("dim_value") for axis in tensor["shape"].get("dim", ()))
    return GraphValue(value.get("name", ""), tensor.get("elem_type", 0), axes)


def _num_bytes(tensor: Fields) -> int:
    """The size of a tensor; its shape, type and bytes must agree."""
    name, data_type = tensor.get("name", "")[:80], tensor.get("data_type", 0)
    if data_type not in _ITEM_BYTES:
        raise ModelRefusedError(f"tensor {name!r} has data type {data_type}, which policies do not have")
    count = 1
    for packed in tensor.get("dims", ()):
        start = 0
        while start < len(packed):
            axis, start = _varint(packed, start)
            count *= axis
            if count > 1 << 40:
                raise ModelRefusedError(f"tensor {name!r} claims {count} numbers or more")
    held = [key for key in tensor if key.endswith("_data")]
    if len(held) > 1 or (held and held[0] not in ("raw_data", _TYPED[data_type])):
        raise ModelRefusedError(f"tensor {name!r} has its numbers in {', '.join(sorted(held))}")
    num_held = 0
    if held:
        (key,) = held
        parts = [tensor[key]] if key == "raw_data" else tensor[key]
        if key in ("int32_data", "int64_data"):
            num_held = sum(int(np.count_nonzero(np.frombuffer(part, np.uint8) < 0x80)) for part in parts)
        else:
            num_held, rest = divmod(sum(map(len, parts)), _ITEM_BYTES[data_type])
            num_held = -1 if rest else num_held
    if num_held != count:
        raise ModelRefusedError(f"tensor {name!r} claims {count} numbers and has {max(0, num_held)}")
    return count * _ITEM_BYTES[data_type]
