"""The sparse part of a block under construction: observations that followed rows where `obs[t + 1]` is not them.

Not its job: which rows those are, apart from the last one (`builders`, `row_rules`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.columns import Successors
from relayrl.data.trees import Array, Space, Tree, allocate, index, map_tree, write


def write_lanes(target: Any, where: int | slice, source: Any) -> None:
    """`target[where] = source`, where source leaves have leading axes `[B, N]` or `[L]`."""
    if isinstance(target, np.ndarray):
        rows = target[where]
        rows[...] = source if source.shape == rows.shape else source.reshape(rows.shape)
    elif isinstance(target, dict):
        for key, part in target.items():
            write_lanes(part, where, source[key])
    else:
        for part, other in zip(target, source, strict=True):
            write_lanes(part, where, other)


class SuccessorRows:
    """Observations that followed rows, in the order of rows; grows by doubling. With `mask_width`, masks as well."""

    def __init__(self, space: Space, capacity: int, mask_width: int | None = None) -> None:
        self._columns: dict[str, Any] = {
            "step": np.empty(capacity, dtype=np.int64),
            "lane": np.empty(capacity, dtype=np.int64),
            "obs": allocate(space, (capacity,), np.empty),
        }
        if mask_width is not None:
            self._columns["action_mask"] = np.empty((capacity, mask_width), dtype=bool)
        self.size = 0

    def append(self, row: int, lanes: Array, obs: Tree, mask: Array | None) -> None:
        """What lanes saw after `row`, and were allowed to do then; everything, where there is no mask."""
        where = self._reserve(len(lanes))
        self._columns["step"][where] = row
        self._columns["lane"][where] = lanes
        write(self._columns["obs"], where, obs)
        if "action_mask" in self._columns:
            self._columns["action_mask"][where] = True if mask is None else mask
        self.size = where.stop

    def complete_last_row(self, row: int, ended: Array, next_obs: Tree, next_mask: Array | None) -> None:
        """`next_obs` for lanes that go on, beside what is already here of those that ended on `row`."""
        num_ended = int(np.count_nonzero(ended))
        self.size -= num_ended
        names = ("obs", "action_mask") if "action_mask" in self._columns else ("obs",)
        last: dict[str, Any] = {}
        if num_ended:
            ending = slice(self.size, self.size + num_ended)
            last = {name: map_tree(np.copy, index(self._columns[name], ending)) for name in names}
        where = self._reserve(len(ended))
        self._columns["step"][where] = row
        self._columns["lane"][where] = np.arange(len(ended))
        write_lanes(self._columns["obs"], where, next_obs)
        if "action_mask" in self._columns:
            self._columns["action_mask"][where] = True if next_mask is None else next_mask.reshape(len(ended), -1)
        for name, column in last.items():
            write(self._columns[name], where.start + np.flatnonzero(ended), column)
        self.size = where.stop

    def rows(self, num_lanes: int) -> Array:
        """Flat indices `step * L + lane`."""
        view = self.view()
        return np.asarray(view.step * num_lanes + view.lane)

    def view(self) -> Successors:
        return Successors(**index(self._columns, slice(self.size)))

    def _reserve(self, num_rows: int) -> slice:
        """Where the next `num_rows` rows go."""
        end, capacity = self.size + num_rows, len(self._columns["step"])
        if end > capacity:
            longer = max(end, 2 * capacity)
            self._columns = map_tree(lambda leaf: np.resize(leaf, (longer, *leaf.shape[1:])), self._columns)
        return slice(self.size, end)
