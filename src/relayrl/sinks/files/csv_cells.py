"""Columns of numbers as text cells and back, without losing a bit.

    0.1      -0      1e-45      inf      nan      nan:ffc00001      "0.5 -1.25 3"

A float is the shortest text that gives the same float of its own width. `nan` is the usual NaN; any other has its bits in
hexadecimal behind it. Booleans are 0 and 1. A leaf with axes is one cell, its elements in C order with spaces between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from relayrl.data.arrow.schema import Leaf
from relayrl.data.trees import Array
from relayrl.errors import DecodeError


def to_cells(leaf: Leaf, array: Array) -> pa.Array:
    """A column `[n, *leaf.shape]` as `n` strings."""
    elements = _to_text(np.ascontiguousarray(array).reshape(-1))
    if not leaf.shape:
        return elements
    if leaf.width == 0:
        return pa.array([""] * len(array), pa.large_string())
    offsets = pa.array(np.arange(0, len(elements) + 1, leaf.width))
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), pa.scalar(" ", pa.large_string()))


def from_cells(leaf: Leaf, cells: pa.Array) -> Array:
    """The column that `to_cells` wrote; `DecodeError` where a cell is anything else."""
    shape = (len(cells), *leaf.shape)
    if leaf.width == 0 or len(cells) == 0:
        return np.empty(shape, leaf.dtype)
    elements = cells
    if leaf.width > 1:
        lists = pc.split_pattern(cells, " ")
        if not pc.all(pc.equal(pc.list_value_length(lists), leaf.width)).as_py():
            raise DecodeError(f"a cell of column {leaf.name!r} does not have {leaf.width} elements")
        elements = lists.flatten()
    try:
        return _from_text(elements, leaf.dtype).reshape(shape)
    except (pa.ArrowException, ValueError) as error:
        raise DecodeError(f"a cell of column {leaf.name!r} is no {leaf.dtype}: {error}") from error


def _to_text(flat: Array) -> pa.Array:
    if flat.dtype.kind == "b":
        flat = flat.view(np.uint8)
    # float16 through float32, which holds each of its values exactly; Arrow formats and parses float32 correctly rounded.
    shown = flat.astype(np.float32) if flat.dtype == np.float16 else flat
    text = pa.array(shown).cast(pa.large_string())
    if flat.dtype.kind != "f" or not (is_nan := np.isnan(flat)).any():
        return text
    bits, usual = _bits(flat), _usual_nan(flat.dtype)
    digits = 2 * flat.dtype.itemsize
    names = ["nan" if word == usual else f"nan:{word:0{digits}x}" for word in bits[is_nan].tolist()]
    return pc.replace_with_mask(text, pa.array(is_nan), pa.array(names, pa.large_string()))


def _from_text(elements: pa.Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        numbers = np.asarray(elements.cast(pa.uint8()).to_numpy(zero_copy_only=False))
        if numbers.max() > 1:
            raise ValueError("a truth value is 0 or 1")
        return numbers.view(bool)
    if dtype.kind != "f":
        return np.array(elements.cast(pa.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False))
    is_nan = pc.starts_with(elements, "nan")
    found = elements.filter(is_nan).to_pylist()
    if found:
        elements = pc.if_else(is_nan, "0", elements)
    parsed = pa.float32() if dtype == np.float16 else pa.from_numpy_dtype(dtype)
    with np.errstate(over="ignore"):
        numbers = np.array(elements.cast(parsed).to_numpy(zero_copy_only=False)).astype(dtype, copy=False)
    if found:
        usual = _usual_nan(dtype)
        words = [usual if text == "nan" else int(text.removeprefix("nan:"), 16) for text in found]
        _bits(numbers)[np.asarray(is_nan.to_numpy(zero_copy_only=False))] = words
    return numbers


def _bits(flat: Array) -> Array:
    return flat.view(f"u{flat.dtype.itemsize}")


def _usual_nan(dtype: np.dtype[Any]) -> int:
    return int(_bits(np.array([np.nan], dtype))[0])
