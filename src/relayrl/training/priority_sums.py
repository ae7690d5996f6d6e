"""Drawing by priority: a tree of sums, sixteen to a node, so that a draw from a million rows touches few lines of memory.

The kernels walk it for all rows of a call at once, and NumPy does without them; both give the same numbers.
"""

from __future__ import annotations

import numpy as np

from relayrl.compiled.loader import kernels
from relayrl.data.trees import Array

FAN_OUT = 16


class PrioritySums:
    """Sums over `size` priorities: setting and drawing cost O(log size) each, vectorised.

    `_levels` are views of one array, the root's children first and the priorities last; node `n` of a level is the sum of
    nodes `16 n … 16 n + 15` of the next.
    """

    def __init__(self, size: int) -> None:
        sizes = [_whole_nodes(size)]
        while sizes[0] > FAN_OUT:
            sizes.insert(0, _whole_nodes(sizes[0] // FAN_OUT))
        self._sums = np.zeros(sum(sizes))
        self._starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._levels = np.split(self._sums, self._starts[1:])

    def set(self, where: Array, priority: Array) -> None:
        """Replace priorities; of a row named twice, the last one counts."""
        if not len(where):
            return
        compiled = kernels()
        if compiled is not None:
            rows, given = np.ascontiguousarray(where, np.int64), np.ascontiguousarray(priority, np.float64)
            compiled.set_priorities(self._sums, self._starts, rows, given)
            return
        self._levels[-1][where] = priority
        for upper, lower in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            where = np.unique(where // FAN_OUT)
            upper[where] = lower.reshape(-1, FAN_OUT)[where].cumsum(1)[:, -1]

    def get(self, where: Array) -> Array:
        """Priorities of some rows."""
        return np.asarray(self._levels[-1][where])

    def num_bytes(self) -> int:
        """Memory of the tree."""
        return int(self._sums.nbytes)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Rows drawn by priority, one from each of `count` equal shares, and their probabilities."""
        total = self._levels[0].cumsum()[-1]
        point = (np.arange(count) + rng.random(count)) * (total / count)
        rows = np.zeros(count, np.int64)
        compiled = kernels()
        if compiled is None:
            for level in self._levels:
                rows, point = _below(level.reshape(-1, FAN_OUT)[rows], rows, point)
        else:
            compiled.find_priorities(self._sums, self._starts, point, rows)
        return rows, self._levels[-1][rows] / total


def _below(children: Array, nodes: Array, point: Array) -> tuple[Array, Array]:
    """The nodes of the next level at which `point` [M] lies, and how far into them; `children` [M, 16] are its sums."""
    bounds = children.cumsum(1)
    last = FAN_OUT - 1 - np.argmax(children[:, ::-1] > 0, 1)  # rounding must not lead beyond what may be drawn
    chosen = np.minimum((point[:, None] >= bounds).sum(1), last)
    begins = np.where(chosen > 0, bounds[np.arange(len(nodes)), chosen - 1], 0.0)
    return FAN_OUT * nodes + chosen, point - begins


def _whole_nodes(size: int) -> int:
    return -(-size // FAN_OUT) * FAN_OUT
