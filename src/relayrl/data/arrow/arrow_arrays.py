"""One column at a time between NumPy and Arrow: leaves of trees, names and successors.

Memory is shared wherever both lay it out alike: everything but booleans, which are bits in Arrow and bytes in NumPy.
What is read back is read-only. Reading assumes a batch that passed Arrow's `validate()`, so that buffers are as long as
rows and types say; everything beyond that (nulls, indices, offsets, text) is checked here.

Not its job: which columns there are (`schema`) and what they mean together (`block_batches`, `rollout_batches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from relayrl.data.arrow.schema import Leaf
from relayrl.data.arrow.space_json import DTYPES
from relayrl.data.trees import Array, Space, Tree
from relayrl.errors import ConfigError, DecodeError


def tree_leaves(space: Space, tree: Tree, name: str) -> Iterator[Any]:
    """The leaves of a tree in the order of its space; `ConfigError` where their structures differ."""
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            raise ConfigError(f"{name!r} should be a dict with keys {list(space.spaces)}, it is {_outline(tree)}")
        for key, part in space.spaces.items():
            yield from tree_leaves(part, tree[key], f"{name}.{key}")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            raise ConfigError(f"{name!r} should be a tuple of {len(space.spaces)}, it is {_outline(tree)}")
        for i, part in enumerate(space.spaces):
            yield from tree_leaves(part, tree[i], f"{name}.{i}")
    elif isinstance(tree, dict | tuple):
        raise ConfigError(f"{name!r} should be one array, it is {_outline(tree)}")
    else:
        yield tree


def _outline(tree: Tree) -> str:
    if isinstance(tree, dict):
        return f"a dict with keys {list(tree)}"
    return f"a tuple of {len(tree)}" if isinstance(tree, tuple) else f"one {type(tree).__name__}"


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


def pooled_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An uninitialised array in Arrow's memory pool, which hands out the same pages again and again.

    NumPy's large arrays come fresh from the system each time; their page faults took half the time of encoding.
    """
    return pooled_arrays([(shape, np.dtype(dtype))])[0]


def pooled_arrays(kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """Several such arrays in one piece, each of a shape and dtype and aligned as Arrow likes it."""
    counts = [prod(shape) for shape, _ in kinds]
    sizes = (count * kind.itemsize for count, (_, kind) in zip(counts, kinds, strict=True))
    begins = list(accumulate((size + 63 & ~63 for size in sizes), initial=0))
    memory = pa.allocate_buffer(begins[-1])
    places = zip(kinds, counts, begins, strict=False)
    return [np.frombuffer(memory, kind, count, begin).reshape(shape) for (shape, kind), count, begin in places]


def to_arrow(leaf: Leaf, array: Any, leading: tuple[int, ...]) -> pa.Array:
    """A NumPy array `[*leading, *leaf.shape]` as a column with one row per leading element."""
    buffer, num_rows = pa.py_buffer(_laid_out(leaf, array, leading)), prod(leading)
    kind = leaf.arrow_type
    if not leaf.shape:
        return pa.Array.from_buffers(kind, num_rows, [None, buffer])
    values = pa.Array.from_buffers(kind.value_type, num_rows * leaf.width, [None, buffer])
    return pa.Array.from_buffers(kind, num_rows, [None], children=[values])


def _laid_out(leaf: Leaf, array: Any, leading: tuple[int, ...]) -> Array:
    """The elements of `[*leading, *leaf.shape]` as Arrow lays them out."""
    if not isinstance(array, np.ndarray | np.generic):
        raise ConfigError(
            f"column {leaf.name!r} is a {type(array).__name__}; copy it to a NumPy array on the host first"
        )
    shape = (*leading, *leaf.shape)
    if array.dtype != leaf.dtype or array.shape != shape:
        raise ConfigError(
            f"column {leaf.name!r} is {array.dtype} {list(array.shape)}, expected {leaf.dtype} {list(shape)}"
        )
    flat: Array = np.asarray(array)
    if not (flat.ndim and flat.flags.c_contiguous):
        flat = np.ascontiguousarray(flat)
    return np.packbits(flat, bitorder="little") if leaf.dtype.kind == "b" else flat


def from_arrow(leaf: Leaf, column: pa.Array, leading: tuple[int, ...]) -> Array:
    """The column as a read-only array `[*leading, *leaf.shape]`; the column has `prod(leading)` rows."""
    _require_no_nulls(column, leaf.name)
    values = column
    if leaf.shape:
        values = column.values.slice(column.offset * leaf.width, len(column) * leaf.width)
        _require_no_nulls(values, leaf.name)
    array = _elements(values, leaf.dtype).reshape(*leading, *leaf.shape)
    array.flags.writeable = False
    return array


def _elements(values: pa.Array, dtype: np.dtype[Any]) -> Array:
    """The elements of an Arrow array of numbers or booleans that has no nulls."""
    if len(values) == 0:
        return np.empty(0, dtype=dtype)
    buffer = values.buffers()[1]
    if dtype.kind != "b":
        return np.frombuffer(buffer, dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize)
    end = values.offset + len(values)
    bits = np.frombuffer(buffer, dtype=np.uint8, count=-(-end // 8))
    return np.unpackbits(bits, count=end, bitorder="little")[values.offset :].view(bool)


def _require_no_nulls(column: pa.Array, name: str) -> None:
    if column.null_count:
        raise DecodeError(f"column {name!r} has {column.null_count} nulls; RelayRL data has none")


def names_to_arrow(kind: pa.DataType, indices: Array, names: Sequence[str]) -> pa.Array:
    """Row `i` is `names[indices[i]]`, dictionary-encoded; `indices` have the dtype of `kind`."""
    dictionary = pa.array(names, type=pa.string())
    return pa.DictionaryArray.from_buffers(kind, len(indices), [None, pa.py_buffer(indices)], dictionary)


def names_from_arrow(column: pa.Array, name: str) -> tuple[Array, pa.Array]:
    """Indices and names of a dictionary-encoded column; the indices are within range, the names are text."""
    _require_no_nulls(column, name)
    names = column.dictionary
    _require_no_nulls(names, name)
    try:
        names.validate(full=True)
    except pa.ArrowException as error:
        raise DecodeError(f"the names of column {name!r} are damaged: {error}") from error
    indices = _elements(column.indices, np.dtype(column.type.index_type.to_pandas_dtype()))
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(names):
        raise DecodeError(f"column {name!r} points outside its {len(names)} names")
    return indices, names


def successors_to_arrow(kind: pa.DataType, rows: Array, num_rows: int, records: Sequence[pa.Array]) -> pa.Array:
    """A list column with one record on each of `rows` (ascending) and none elsewhere."""
    lengths = np.diff(rows, prepend=-1, append=num_rows)
    offsets = np.repeat(np.arange(len(rows) + 1, dtype=np.int32), lengths)
    struct = pa.Array.from_buffers(kind.value_type, len(rows), [None], children=list(records))
    return pa.Array.from_buffers(kind, num_rows, [None, pa.py_buffer(offsets)], children=[struct])


def successors_from_arrow(column: pa.Array, expected: Array) -> list[pa.Array]:
    """The records' fields, `K` rows each; `DecodeError` unless there is one record exactly where `expected` says."""
    _require_no_nulls(column, "successor")
    offsets = np.frombuffer(
        column.buffers()[1], dtype=np.int32, count=len(column) + 1, offset=column.offset * np.dtype(np.int32).itemsize
    )
    first, last, rows = int(offsets[0]), int(offsets[-1]), np.flatnonzero(expected)
    is_right = np.array_equal(offsets[1:] != offsets[:-1], expected) and (offsets[rows + 1] - offsets[rows] == 1).all()
    if not is_right or first < 0 or last > len(column.values):
        raise DecodeError("column 'successor' does not have one observation wherever a lane ends or the block does")
    records = column.values.slice(first, last - first)
    _require_no_nulls(records, "successor")
    return list(records.flatten())
