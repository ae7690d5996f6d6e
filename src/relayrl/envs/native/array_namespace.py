"""The array seam: the operations that native environments use, once for NumPy and once for torch.

Environments are written against `ArrayNamespace` alone, so that the same lines run on the CPU with NumPy and on a device with
torch. Functions that take `out=` write into arrays that exist already. This file does not hold any environment's arithmetic,
and it imports torch only when a device asks for it.

Plain operators (`+`, `*`, `&`, `>>`, indexing, slicing, `reshape`) mean the same in both libraries and are used directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import ConfigError

XArray: TypeAlias = Any
"""A NumPy array, or a torch tensor on the namespace's device."""

DTypeName: TypeAlias = Literal["float32", "float64", "int64", "int8", "uint8", "bool"]
Function: TypeAlias = Callable[..., XArray]


CACHE_LINE = 128
"""Bytes; of most processors two."""
_SHARED_NAMES = (
    *("add", "subtract", "multiply", "divide", "negative", "absolute", "floor", "maximum"),
    *("square", "sqrt", "exp", "log1p", "sin", "cos", "where"),
    *("less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_not"),
)
"""Functions that have the same name and meaning in both libraries."""


@dataclass(frozen=True)
class ArrayNamespace:
    """NumPy or torch behind the same names. Element-wise functions take `out=`; reductions take an axis and `out=`."""

    device: str
    zeros: Callable[[Sequence[int], DTypeName], XArray]
    constant: Callable[[float, DTypeName], Any]  # a number in the form that element-wise functions take fastest
    asarray: Callable[[Any], XArray]  # whatever a caller passed, as an array of this namespace; no copy where possible
    from_host: Callable[[Array], XArray]
    table: Callable[[Array], XArray]  # a small constant: sent to a device once, whoever asks for the same numbers again
    to_host: Callable[[XArray], Array]
    cast: Callable[[XArray, DTypeName], XArray]
    permute: Callable[[XArray, Sequence[int]], XArray]
    copy: Callable[[XArray, XArray], object]  # copy(target, source)
    copy_envs_first: Callable[[XArray, XArray], object]  # the same between layouts with different axis orders
    take: Callable[[XArray, XArray, int, XArray], object]  # take(source, index [K], axis, out)
    in_range: Callable[[XArray, int], bool]  # whether all of an int64 array lies in 0 … n − 1
    nonzero: Callable[[XArray], XArray]  # [B] bool → indices, ascending
    count_true: Callable[[XArray], int]
    copy_where: Callable[[XArray, XArray, XArray], object]  # copy_where(target, source, mask)
    clip: Callable[[XArray, float, float, XArray], object]  # clip(source, low, high, out)
    add: Function
    subtract: Function
    multiply: Function
    divide: Function
    square: Function
    sqrt: Function
    exp: Function
    log1p: Function
    sin: Function
    cos: Function
    absolute: Function
    floor: Function
    negative: Function
    maximum: Function
    less: Function
    less_equal: Function
    greater: Function
    greater_equal: Function
    equal: Function
    logical_and: Function
    logical_or: Function
    logical_not: Function
    where: Callable[[XArray, XArray, XArray], XArray]
    sum: Callable[[XArray, int, XArray], object]  # sum(source, axis, out): in order, however many worlds there are
    count: Callable[[XArray, int], XArray]  # number of True along an axis, int64
    min: Callable[[XArray, int], XArray]
    any_along: Callable[[XArray, int], XArray]
    argsort: Callable[[XArray, int], XArray]
    take_along: Callable[[XArray, XArray, int], XArray]


def namespace_of(device: str) -> ArrayNamespace:
    """NumPy for `"cpu"`; torch on that device for every other name (`"cuda"`, `"cuda:1"`, `"cpu:0"` for torch on the CPU)."""
    return _NUMPY if device == "cpu" else _torch_namespace(device)


def _numpy_zeros(shape: Sequence[int], dtype: DTypeName) -> Array:
    """Zeros that begin at a cache line, so that threads that write to parts of an array rarely write to the same one."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(count + CACHE_LINE, np.uint8)
    first = -memory.__array_interface__["data"][0] % CACHE_LINE
    return memory[first : first + count].view(dtype).reshape(shape)


def _numpy_clip(source: Array, low: float, high: float, out: Array) -> None:
    # two ufuncs: np.clip costs several microseconds of argument handling per call
    np.maximum(source, low, out=out)
    np.minimum(out, high, out=out)


def _numpy_in_range(index: Array, n: int) -> bool:
    unsigned = index.view(np.uint64)  # in which negative numbers are the largest
    return bool(unsigned.item(unsigned.argmax()) < n)  # argmax is several times faster than max for small arrays


def _numpy_sum(source: Array, axis: int, out: Array) -> None:
    if source.shape[-1] > 1 or source.shape[axis] == 0:
        np.add.reduce(source, axis=axis, out=out)
    else:  # a single world's numbers lie side by side, and NumPy would add them in pairs: other bits than among many worlds
        np.copyto(out, np.add.accumulate(source, axis=axis).take(-1, axis=axis))


_NUMPY = ArrayNamespace(
    **{name: getattr(np, name) for name in _SHARED_NAMES},
    device="cpu",
    zeros=_numpy_zeros,
    constant=np.array,
    asarray=np.asarray,
    from_host=np.asarray,
    table=np.asarray,
    to_host=np.array,
    cast=lambda source, dtype: source.astype(dtype, copy=False),
    permute=np.transpose,
    copy=np.copyto,
    # a ufunc walks the source's order, np.copyto the target's: reading along a power-of-two stride is three times slower
    copy_envs_first=lambda target, source: np.positive(source, out=target),
    take=lambda source, index, axis, out: source.take(index, axis, out, "clip"),
    in_range=_numpy_in_range,
    nonzero=lambda source: source.nonzero()[0],
    count_true=np.count_nonzero,
    copy_where=lambda target, source, mask: np.copyto(target, source, where=mask),
    clip=_numpy_clip,
    equal=np.equal,
    sum=_numpy_sum,
    count=lambda source, axis: np.add.reduce(source, axis=axis, dtype=np.int64),
    min=np.minimum.reduce,
    any_along=np.logical_or.reduce,
    argsort=lambda source, axis: np.argsort(source, axis=axis, kind="stable"),
    take_along=np.take_along_axis,
)


def _torch_namespace(device: str) -> ArrayNamespace:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"device {device!r} needs torch; install it with: pip install torch") from error
    try:
        place = torch.device(device)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise ConfigError(
            f"device {device!r} cannot be used here ({line}); use 'cpu' or an available device"
        ) from error

    names: tuple[DTypeName, ...] = ("float32", "float64", "int64", "int8", "uint8", "bool")
    dtypes = {name: getattr(torch, name) for name in names}
    tables: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    def table(source: Array) -> XArray:
        key = str(source.dtype), source.shape, source.tobytes()
        if key not in tables:
            tables[key] = torch.from_numpy(np.array(source)).to(place)
        return tables[key]

    return ArrayNamespace(
        **{name: getattr(torch, name) for name in _SHARED_NAMES},
        device=device,
        zeros=lambda shape, dtype: torch.zeros(tuple(shape), dtype=dtypes[dtype], device=place),
        constant=lambda value, dtype: value,
        asarray=lambda source: torch.as_tensor(source, device=place),
        from_host=lambda source: torch.from_numpy(np.array(source)).to(place),
        table=table,
        to_host=lambda source: np.array(source.cpu().numpy()),
        cast=lambda source, dtype: source.to(dtypes[dtype]),
        permute=lambda source, axes: source.permute(tuple(axes)),
        copy=lambda target, source: target.copy_(source),
        copy_envs_first=lambda target, source: target.copy_(source),
        take=lambda source, index, axis, out: torch.index_select(source, axis, index, out=out),
        in_range=lambda index, n: not bool(((index < 0) | (index >= n)).any()),
        nonzero=lambda source: torch.nonzero(source).squeeze(1),
        count_true=lambda source: int(source.sum()),
        copy_where=lambda target, source, mask: target.copy_(torch.where(mask, source, target)),
        clip=lambda source, low, high, out: torch.clamp(source, low, high, out=out),
        equal=torch.eq,
        # torch.sum adds in an order that depends on the shape
        sum=lambda source, axis, out: (
            out.copy_(torch.cumsum(source, axis).select(axis, -1)) if source.shape[axis] else out.zero_()
        ),
        count=lambda source, axis: torch.sum(source, dim=axis, dtype=torch.int64),
        min=torch.amin,
        any_along=lambda source, axis: torch.any(source, dim=axis),
        argsort=lambda source, axis: torch.argsort(source, dim=axis, stable=True),
        take_along=torch.take_along_dim,
    )
