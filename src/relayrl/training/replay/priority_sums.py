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
    nodes `16 n … 16 n + 15` of the next. `_ends` are the running sums inside each node, of all levels but the last.
    """

    def __init__(self, size: int) -> None:
        sizes = [_whole_nodes(size)]
        while sizes[0] > FAN_OUT or len(sizes) == 1:
            sizes.insert(0, _whole_nodes(sizes[0] // FAN_OUT))
        self._sums, self._upper_ends = np.zeros(sum(sizes)), np.zeros(sum(sizes[:-1]))
        self._starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._levels = np.split(self._sums, self._starts[1:])
        self._ends = np.split(self._upper_ends, self._starts[1:-1])

    def set(self, where: Array, priority: Array) -> None:
        """Replace priorities; of a row named twice, the last one counts."""
        if not len(where):
            return
        compiled = kernels()
        if compiled is not None:
            rows, given = np.ascontiguousarray(where, np.int64), np.ascontiguousarray(priority, np.float64)
            compiled.set_priorities(self._sums, self._upper_ends, self._starts, rows, given)
            return
        self._levels[-1][where] = priority
        nodes = np.unique(where // FAN_OUT)
        ends = _nodes(self._levels[-1])[nodes].cumsum(1)
        for upper, upper_ends in zip(self._levels[-2::-1], self._ends[::-1], strict=True):
            upper[nodes] = ends[:, -1]
            nodes = np.unique(nodes // FAN_OUT)
            ends = _nodes(upper)[nodes].cumsum(1)
            _nodes(upper_ends)[nodes] = ends

    def get(self, where: Array) -> Array:
        """Priorities of some rows."""
        return np.asarray(self._levels[-1][where])

    def num_bytes(self) -> int:
        """Memory of the tree."""
        return int(self._sums.nbytes + self._upper_ends.nbytes)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Rows drawn by priority, one from each of `count` equal shares, and their probabilities."""
        total = self._ends[0][-1]
        point = (np.arange(count) + rng.random(count)) * (total / count)
        rows = np.zeros(count, np.int64)
        compiled = kernels()
        if compiled is None:
            for ends in self._ends:
                rows, point = _below(_nodes(ends)[rows], rows, point)
            rows, point = _below(_nodes(self._levels[-1])[rows].cumsum(1), rows, point)
        else:
            compiled.find_priorities(self._sums, self._upper_ends, self._starts, point, rows)
        return rows, self._levels[-1][rows] / total


def _below(ends: Array, nodes: Array, point: Array) -> tuple[Array, Array]:
    """The nodes of the next level at which `point` [M] lies, and how far into them; `ends` [M, 16] of its children."""
    last = (ends < ends[:, -1:]).sum(1)  # rounding must not lead beyond what may be drawn
    chosen = np.minimum((point[:, None] >= ends).sum(1), last)
    begins = np.where(chosen > 0, ends[np.arange(len(nodes)), chosen - 1], 0.0)
    return FAN_OUT * nodes + chosen, point - begins


def _nodes(level: Array) -> Array:
    return level.reshape(-1, FAN_OUT)


def _whole_nodes(size: int) -> int:
    return -(-size // FAN_OUT) * FAN_OUT
