"""Drawing by priority: a binary tree of sums.

The kernels walk it row by row, NumPy level by level; both give the same numbers.
"""

from __future__ import annotations

import numpy as np

from relayrl.compiled.loader import kernels
from relayrl.data.trees import Array


class PrioritySums:
    """A binary tree of sums over `size` priorities: setting and drawing cost O(log size) each, vectorised."""

    def __init__(self, size: int) -> None:
        self._first_leaf = 1 << max(size - 1, 1).bit_length()
        self._sums = np.zeros(2 * self._first_leaf)

    def set(self, where: Array, priority: Array) -> None:
        """Replace priorities; of a row named twice, the last one counts."""
        if not len(where):
            return
        compiled = kernels()
        if compiled is not None:
            compiled.set_priorities(self._sums, self._first_leaf, _plain(where, np.int64), _plain(priority, np.float64))
            return
        node = where + self._first_leaf
        self._sums[node] = priority
        node = np.unique(node >> 1)
        while node[0] >= 1:
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]
            node = np.unique(node >> 1)

    def get(self, where: Array) -> Array:
        """Priorities of some rows."""
        return np.asarray(self._sums[self._first_leaf + where])

    def num_bytes(self) -> int:
        """Memory of the tree."""
        return int(self._sums.nbytes)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Rows drawn by priority, one from each of `count` equal shares, and their probabilities."""
        total = self._sums[1]
        point = (np.arange(count) + rng.random(count)) * (total / count)
        node = np.ones(count, np.int64)
        compiled = kernels()
        if compiled is not None:
            compiled.find_priorities(self._sums, self._first_leaf, point, node)
        while node[0] < self._first_leaf:
            left = self._sums[2 * node]
            goes_right = (point >= left) & (self._sums[2 * node + 1] > 0)
            point = np.where(goes_right, point - left, point)
            node = 2 * node + goes_right
        return node - self._first_leaf, self._sums[node] / total


def _plain(numbers: Array, dtype: type) -> Array:
    return np.ascontiguousarray(numbers, dtype)
