"""Who is where as seen by whom, and the forces between those who touch: the arithmetic that all particle worlds share."""

from __future__ import annotations

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.native.array_namespace import ArrayNamespace, DTypeName, XArray
from relayrl.envs.native.compiled_steps import step_kernels

CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
NEGLIGIBLE = 60.0  # softplus(−60) = 9e-27; clipping there keeps float32 clear of denormal numbers, which are slow
TINY = 1e-12


class Geometry:
    """`offset` `[2, N, K, B]` from each of N observers to each of K bodies that it sees, and `distance` `[N, K, B]`."""

    def __init__(self, xp: ArrayNamespace, dtype: DTypeName, observers: slice, seen: Array, num_worlds: int) -> None:
        """`seen` [N, K]: body numbers, a row for each observer; `observers`: the observers' body numbers."""
        self._xp = xp
        self._observers = observers
        self._index = xp.from_host(np.ascontiguousarray(seen, np.int64).reshape(-1))
        self.offset = xp.zeros((2, *seen.shape, num_worlds), dtype)
        self.distance = xp.zeros((*seen.shape, num_worlds), dtype)
        self._flat = self.offset.reshape(2, seen.size, num_worlds)
        self._squares = xp.zeros(self.offset.shape, dtype)
        self._kernels = step_kernels(xp, dtype) if type(self) is Geometry else None

    def update(self, position: XArray) -> None:
        """Follow the bodies' positions `[2, E, B]`."""
        if self._kernels is not None:
            sizes = (*self.distance.shape, position.shape[1], self._observers.start)
            self._kernels.measure_offsets(*sizes, position, self._index, self.offset, self.distance)
            return
        xp, squares = self._xp, self._squares
        xp.take(position, self._index, 1, self._flat)
        xp.subtract(self.offset, position[:, self._observers, None, :], out=self.offset)
        xp.square(self.offset, out=squares)
        xp.add(squares[0], squares[1], out=self.distance)
        xp.sqrt(self.distance, out=self.distance)


class Contacts:
    """Forces that push apart those who overlap: 100 · softplus of the overlap, along the line between the centres."""

    def __init__(self, xp: ArrayNamespace, dtype: DTypeName, reach: Array, num_worlds: int) -> None:
        """`reach` [N, C]: the distance at which agent n and body c touch."""
        self._xp = xp
        self._reach = xp.from_host(reach[..., None].astype(dtype))
        self._overlap, self._soft = (xp.zeros((*reach.shape, num_worlds), dtype) for _ in range(2))
        self._push = xp.zeros((2, *reach.shape, num_worlds), dtype)
        self._kernels = step_kernels(xp, dtype) if type(self) is Contacts else None
        if self._kernels is not None:
            self._start = np.zeros(reach.size + 1, np.int64)
            self._close = np.zeros((*reach.shape, num_worlds), np.int32)
            self._exponent = np.zeros(1 + self._close.size, np.float32)

    def force(self, geometry: Geometry, columns: slice, out: XArray) -> None:
        """Total contact force on each agent, `[2, N, B]`, of the bodies in some columns of what it sees."""
        if self._kernels is not None and columns.stop is None:
            self._force_compiled(geometry, columns.start or 0, out)
            return
        xp, overlap, soft = self._xp, self._overlap, self._soft
        offset, distance = geometry.offset[:, :, columns], geometry.distance[:, columns]
        xp.subtract(self._reach, distance, out=overlap)
        xp.divide(overlap, CONTACT_MARGIN, out=overlap)
        xp.absolute(overlap, out=soft)
        xp.clip(soft, 0.0, NEGLIGIBLE, soft)
        xp.negative(soft, out=soft)
        xp.exp(soft, out=soft)
        xp.log1p(soft, out=soft)
        xp.clip(overlap, 0.0, np.inf, overlap)
        xp.add(soft, overlap, out=soft)  # softplus(x) = max(x, 0) + log(1 + exp(−|x|))
        xp.multiply(soft, -CONTACT_FORCE * CONTACT_MARGIN, out=soft)
        xp.clip(distance, TINY, np.inf, overlap)
        xp.divide(soft, overlap, out=soft)
        xp.multiply(offset, soft, out=self._push)  # away from the other: −offset / distance · 100 · penetration
        xp.sum(self._push, 2, out)

    def _force_compiled(self, geometry: Geometry, first: int, out: Array) -> None:
        """The same for all columns from `first` on, to the last bit."""
        assert self._kernels is not None
        sizes, found = (*geometry.distance.shape, first), (self._start, self._close)
        count = self._kernels.find_contacts(
            *sizes, self._reach, geometry.distance, CONTACT_MARGIN, NEGLIGIBLE, *found, self._exponent
        )
        soft = log1p_exp(self._exponent[:count])
        numbers = CONTACT_MARGIN, -CONTACT_FORCE * CONTACT_MARGIN, TINY
        self._kernels.add_pushes(*sizes, self._reach, *found, soft, geometry.offset, geometry.distance, *numbers, out)


def log1p_exp(exponent: Array) -> Array:
    """log(1 + exp(x)) in place, by NumPy, whose last bits the kernels have not."""
    np.exp(exponent, out=exponent)
    return np.log1p(exponent, out=exponent)


def nearest(xp: ArrayNamespace, distance: XArray, count: int) -> XArray:
    """[N, min(count, K), B] columns of the bodies nearest to each observer, nearest first."""
    return xp.argsort(distance, 1)[:, :count]
