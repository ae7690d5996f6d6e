"""Trees of arrays: how observations and actions of nested spaces are held.

A `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary` space is one array; a `Dict` space is a dict of trees in the space's
own key order, a `Tuple` space a tuple of trees. All leaves share their leading axes (`[T, L]`, `[B, N]`, …). Leaves are
NumPy arrays, or torch tensors for environments that live on a device: most functions only index and call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from relayrl.errors import ConfigError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tree: TypeAlias = "Array | dict[str, Tree] | tuple[Tree, ...]"
Space: TypeAlias = spaces.Space[Any]


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` leaf by leaf to trees of the same structure."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, value, *(other[i] for other in others)) for i, value in enumerate(tree))
    return function(tree, *others)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves with their paths, depth first: `""` for a plain array, `"camera.0"` inside nested trees."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, tuple):
        for i, value in enumerate(tree):
            yield from leaves(value, f"{path}.{i}" if path else str(i))
    else:
        yield path, tree


def all_finite(numbers: Array) -> bool:
    """Whether no number is NaN or infinite: a finite sum of squares shows it in one call, others may have overflown."""
    total = 0.0 if numbers.dtype.kind != "f" else numbers.item() if numbers.size == 1 else np.vdot(numbers, numbers)
    return isfinite(total) or bool(np.isfinite(numbers).all())


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


def space_leaves(space: Space, path: str = "") -> Iterator[tuple[str, Space]]:
    """The non-nested spaces inside a space, with the same paths and order as `leaves` of its trees."""
    if isinstance(space, spaces.Dict):
        for key, value in space.spaces.items():
            yield from space_leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(space, spaces.Tuple):
        for i, value in enumerate(space.spaces):
            yield from space_leaves(value, f"{path}.{i}" if path else str(i))
    else:
        yield path, space


def unflatten(space: Space, flat: Iterator[Any]) -> Any:
    """Build the tree of `space` from its leaves in `space_leaves` order."""
    if isinstance(space, spaces.Dict):
        return {key: unflatten(value, flat) for key, value in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(value, flat) for value in space.spaces)
    return next(flat)


def allocate(
    space: Space, leading: Sequence[int], make: Callable[[tuple[int, ...], np.dtype[Any]], Any] = np.zeros
) -> Any:
    """A tree of `space` with `leading` axes before each leaf's own shape; `make(shape, dtype)` gives each array."""
    flat = (make((*leading, *(leaf.shape or ())), leaf_dtype(leaf)) for _, leaf in space_leaves(space))
    return unflatten(space, flat)


def leaf_dtype(space: Space) -> np.dtype[Any]:
    """The dtype in which RelayRL stores values of a non-nested space."""
    if space.dtype is None:
        raise TypeError(f"space {space} has no dtype; use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")
    return np.dtype(space.dtype)


def index(tree: Any, where: Any) -> Any:
    """Every leaf indexed by `where` on its leading axes."""
    return map_tree(lambda leaf: leaf[where], tree)


def write(target: Any, where: Any, source: Any) -> None:
    """`target[where] = source` leaf by leaf, in place."""
    if isinstance(target, dict):
        for key, value in target.items():
            write(value, where, source[key])
    elif isinstance(target, tuple):
        for value, part in zip(target, source, strict=True):
            write(value, where, part)
    else:
        target[where] = source


def same_columns(one: Space, other: Space, *, by_dtype: bool = False) -> bool:
    """Whether values of one space can be read as those of the other, whatever their bounds; `by_dtype`, whatever they mean."""
    here, there = dict(space_leaves(one)), dict(space_leaves(other))
    same = _same_array if by_dtype else _same_leaf
    return list(here) == list(there) and all(same(leaf, there[path]) for path, leaf in here.items())


def _same_array(one: Space, other: Space) -> bool:
    return one.shape == other.shape and leaf_dtype(one) == leaf_dtype(other)


def _same_leaf(one: Space, other: Space) -> bool:
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return _same_array(one, other)
    return bool(one == other)
