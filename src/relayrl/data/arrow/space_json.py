"""Spaces as JSON text: exact for every space that RelayRL stores, readable by any program, safe to parse from strangers.

    {"type": "box", "dtype": "float32", "shape": [2], "low": -1.0, "high": ["inf", 8.0]}
    {"type": "discrete", "dtype": "int64", "n": 4, "start": 0}
    {"type": "multi_discrete", "dtype": "int64", "shape": [2], "nvec": [3, 5], "start": 0}
    {"type": "multi_binary", "n": 8}
    {"type": "dict", "spaces": [["camera", {…}], ["speed", {…}]]}          pairs, because the order of keys matters
    {"type": "tuple", "spaces": [{…}, {…}]}

Bounds that are equal in every element are written once; otherwise there is one number per element, in C order. Infinite
bounds are the strings "inf" and "-inf"; in an integer box they mean an element without that bound.

Not its job: what the columns of a space are called and typed (`schema`), and spaces whose values have no fixed size
(`Text`, `Sequence`, `Graph`): those are refused.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, Tree
from relayrl.errors import ConfigError, DecodeError

MAX_TEXT_BYTES = 4 << 20
"""Longest JSON text of a space. Parsed JSON takes about thirty times its text, so this is what bounds a stranger's cost."""
MAX_DEPTH = 32
MAX_AXES = 32
MAX_SPACES = 4096
"""Most spaces inside one, itself included."""
_DTYPES = (bool, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPES = {np.dtype(code).name: np.dtype(code) for code in _DTYPES}
"""The dtypes that columns may have, by name."""


def space_to_json(space: Space) -> str:
    """The JSON text of a space; equal spaces give equal texts."""
    if _num_spaces(space) > MAX_SPACES:
        raise ConfigError(
            f"a space holds {_num_spaces(space)} spaces, more than {MAX_SPACES}; join them into larger boxes"
        )
    text = json.dumps(_to_document(space, depth=0), allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_TEXT_BYTES:
        raise ConfigError(
            f"the bounds of a space take {len(text)} bytes as JSON, more than {MAX_TEXT_BYTES}; "
            "give large boxes one bound for all elements"
        )
    return text


def space_from_json(text: str, *, max_elements: int) -> Space:
    """The space that `space_to_json` wrote; `DecodeError` for anything else or for more than `max_elements` in total."""
    if len(text) > MAX_TEXT_BYTES:
        raise DecodeError(f"the JSON of a space has {len(text)} characters, more than {MAX_TEXT_BYTES}")
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a space is not JSON: {error}") from error
    return _Reader(max_elements).space(document, depth=0)


def _num_spaces(space: Space) -> int:
    parts = space.spaces if isinstance(space, spaces.Dict | spaces.Tuple) else ()
    return 1 + sum(_num_spaces(part) for part in (parts.values() if isinstance(parts, dict) else parts))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _to_document(space: Space, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise ConfigError(f"a space is nested more than {MAX_DEPTH} levels deep; flatten it")
    if isinstance(space, spaces.Dict):
        for key in space.spaces:
            if not isinstance(key, str):
                raise ConfigError(f"key {key!r} of a Dict space is not a string; rename it to {str(key)!r}")
        return {"type": "dict", "spaces": [[key, _to_document(part, depth + 1)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "tuple", "spaces": [_to_document(part, depth + 1) for part in space.spaces]}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "multi_binary", "n": space.n if isinstance(space.n, int) else [int(axis) for axis in space.n]}
    if isinstance(space, spaces.Discrete):
        return {"type": "discrete", "dtype": _dtype_name(space), "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        head = {"type": "multi_discrete", "dtype": _dtype_name(space), "shape": list(space.nvec.shape)}
        return {**head, "nvec": _to_numbers(space.nvec), "start": _to_numbers(space.start)}
    if isinstance(space, spaces.Box):
        head = {"type": "box", "dtype": _dtype_name(space), "shape": list(space.shape)}
        low, high = _to_numbers(space.low), _to_numbers(space.high)
        if space.dtype.kind == "i":
            low = _mark_unbounded(low, np.asarray(space.bounded_below), "-inf")
            high = _mark_unbounded(high, np.asarray(space.bounded_above), "inf")
        return {**head, "low": low, "high": high}
    raise ConfigError(
        f"{type(space).__name__} spaces cannot be stored; wrap the environment so that it uses "
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _dtype_name(space: Space) -> str:
    if space.dtype is None or space.dtype not in DTYPES.values():
        raise ConfigError(f"dtype {space.dtype} of space {space} cannot be stored; use one of {', '.join(DTYPES)}")
    return str(space.dtype.name)


def _to_numbers(values: Array) -> Any:
    """One number if all elements have the same bits (so that 0.0 and -0.0 differ), else a flat list."""
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(f"u{flat.itemsize}")
    if flat.size and (bits == bits[0]).all():
        return _to_number(flat[0].item())
    return [_to_number(value) for value in flat.tolist()]


def _to_number(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


def _mark_unbounded(numbers: Any, bounded: Array, mark: str) -> Any:
    """Gymnasium turns an infinite bound of an integer box into the dtype's extreme and remembers it in `bounded_*`."""
    if bounded.all():
        return numbers
    if not bounded.any():
        return mark
    flat = bounded.reshape(-1)
    each = numbers if isinstance(numbers, list) else [numbers] * len(flat)
    return [number if is_bounded else mark for number, is_bounded in zip(each, flat, strict=True)]


class _Reader:
    """Reads one document; refuses sizes before anything of that size is allocated."""

    def __init__(self, max_elements: int) -> None:
        self._max_elements = max_elements
        self._num_elements = 0
        self._num_spaces = 0

    def space(self, document: Any, depth: int) -> Space:
        if depth > MAX_DEPTH:
            raise DecodeError(f"a space is nested more than {MAX_DEPTH} levels deep")
        self._num_spaces += 1
        if self._num_spaces > MAX_SPACES:
            raise DecodeError(f"a space holds more than {MAX_SPACES} spaces")
        if not isinstance(document, dict):
            raise DecodeError(f"a space is {type(document).__name__} in JSON, expected an object")
        kind = document.get("type")
        keys = _KEYS.get(kind) if isinstance(kind, str) else None
        if keys is None:
            raise DecodeError(f"unknown type of space: {kind!r:.40}")
        if document.keys() != keys:
            raise DecodeError(f"a {kind} space has keys {sorted(document)!r:.80}, expected {sorted(keys)}")
        try:
            return self._build(str(kind), document, depth)
        except (AssertionError, ValueError, TypeError, ArithmeticError) as error:
            raise DecodeError(f"a {kind} space cannot be built: {error!s:.200}") from error

    def _build(self, kind: str, document: dict[str, Any], depth: int) -> Space:
        if kind == "dict":
            pairs = [_pair(pair) for pair in _list(document["spaces"], "spaces")]
            if len({key for key, _ in pairs}) != len(pairs):
                raise DecodeError("a dict space repeats a key")
            return spaces.Dict(OrderedDict((key, self.space(part, depth + 1)) for key, part in pairs))
        if kind == "tuple":
            return spaces.Tuple([self.space(part, depth + 1) for part in _list(document["spaces"], "spaces")])
        if kind == "multi_binary":
            n = document["n"]
            shape = self._shape(n if isinstance(n, list) else [n])
            return spaces.MultiBinary(shape if isinstance(n, list) else shape[0])
        dtype = DTYPES.get(document["dtype"]) if isinstance(document["dtype"], str) else None
        if dtype is None:
            raise DecodeError(f"unknown dtype {document['dtype']!r:.40} in a {kind} space")
        if kind == "discrete":
            return self._discrete(document, dtype)
        shape = self._shape(document["shape"])
        if kind == "multi_discrete":
            nvec, start = (_array(_numbers(document[key], shape), shape, dtype) for key in ("nvec", "start"))
            return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
        return _box(document, shape, dtype)

    def _discrete(self, document: dict[str, Any], dtype: np.dtype[Any]) -> Space:
        self._shape([])
        n, start = (int(_array([document[key]], (), dtype)) for key in ("n", "start"))
        if dtype == np.int64:
            return spaces.Discrete(n, start=start)
        return spaces.Discrete(n, start=start, dtype=dtype.type)

    def _shape(self, axes: Any) -> tuple[int, ...]:
        axes = _list(axes, "shape")
        if len(axes) > MAX_AXES or not all(type(axis) is int and 0 <= axis < 2**31 for axis in axes):
            raise DecodeError(f"a space has no valid shape: {axes!r:.80}")
        self._num_elements += math.prod(axes)
        if self._num_elements > self._max_elements:
            raise DecodeError(
                f"the spaces have {self._num_elements} elements or more, the columns only {self._max_elements}"
            )
        return tuple(axes)


_KEYS = {
    "box": {"type", "dtype", "shape", "low", "high"},
    "discrete": {"type", "dtype", "n", "start"},
    "multi_discrete": {"type", "dtype", "shape", "nvec", "start"},
    "multi_binary": {"type", "n"},
    "dict": {"type", "spaces"},
    "tuple": {"type", "spaces"},
}


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise DecodeError(f"{what!r} of a space is {type(value).__name__} in JSON, expected a list")
    return value


def _pair(value: Any) -> tuple[str, Any]:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        return value[0], value[1]
    raise DecodeError(f"a dict space has {value!r:.40} where a pair of key and space belongs")


def _numbers(numbers: Any, shape: tuple[int, ...]) -> list[Any]:
    """One number for all elements, or one for each."""
    if not isinstance(numbers, list):
        return [numbers]
    if len(numbers) != math.prod(shape):
        raise DecodeError(f"a space of shape {shape} has {len(numbers)} numbers, expected one or {math.prod(shape)}")
    return numbers


def _array(flat: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The numbers as an array, each exactly as it stands there or not at all."""
    wanted = {"b": bool, "f": float}.get(dtype.kind, int)
    if not all(type(number) is wanted for number in flat):
        raise DecodeError(f"a space of {dtype} has {flat!r:.80} where {wanted.__name__} values belong")
    with np.errstate(all="raise"):
        if len(flat) == 1:
            return np.full(shape, flat[0], dtype=dtype)
        return np.array(flat, dtype=dtype).reshape(shape)


def _box(document: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Space:
    low, high = _numbers(document["low"], shape), _numbers(document["high"], shape)
    if dtype.kind == "f":
        low, high = ([float(n) if n in ("inf", "-inf") else n for n in side] for side in (low, high))
    bounded_below, bounded_above = (
        [number != mark for number in side] for side, mark in ((low, "-inf"), (high, "inf"))
    )
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        low = [limits.min if number == "-inf" else number for number in low]
        high = [limits.max if number == "inf" else number for number in high]
    box = spaces.Box(_array(low, shape, dtype), _array(high, shape, dtype), shape=shape, dtype=dtype.type)
    if not (all(bounded_below) and all(bounded_above)):
        box.bounded_below = _array(bounded_below, shape, np.dtype(bool))
        box.bounded_above = _array(bounded_above, shape, np.dtype(bool))
    return box


def space_of_tree(tree: Tree, num_leading: int) -> Space:
    """A space of everything that has the structure, dtypes and shapes of a tree without its leading axes."""
    if isinstance(tree, dict):
        return spaces.Dict([(key, space_of_tree(part, num_leading)) for key, part in tree.items()])
    if isinstance(tree, tuple):
        return spaces.Tuple([space_of_tree(part, num_leading) for part in tree])
    shape, dtype = tree.shape[num_leading:], tree.dtype
    if dtype not in DTYPES.values():
        raise ConfigError(f"a column of {dtype} cannot be stored; use one of {', '.join(DTYPES)}")
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(*limits, shape, dtype.type)
