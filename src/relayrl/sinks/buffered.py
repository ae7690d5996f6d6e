"""The part of a sink that is the same for all that store: check, hold back, write in bulk, be retried.

Trajectories are checked when they come, column by column. Of choices (`Discrete`, `MultiDiscrete`, `MultiBinary`) every element
must be one of the options, and a mask has an entry for each of them. Elements of a `Box` may be anything that its dtype holds:
a Gaussian acts outside of the bounds. Errors name the trajectory.

A subclass says how records and marks become durable (`_persist`, `_mark`) and what to let go of (`_release`); it is never
called by two threads at once. Blocks leave the buffer when `_persist` has returned, so that whatever happens before is retried
as a whole.

Not its job: shapes and dtypes (`layout_book`), or what may be learned from (`training.facade`).
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Collection, Sequence
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow.layout_book import layout_book, name_of
from relayrl.data.arrow.schema import Layout
from relayrl.data.choices import value_bounds
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, Space, space_leaves
from relayrl.errors import ConfigError, SinkClosedError
from relayrl.sinks.contract import TrajectorySink
from relayrl.sinks.sink_settings import SinkSettings

_FIRST_LEAF = 2
"""Of observations in `TrajectoryBlock.arrays`, behind reward and policy version; actions follow."""


class BufferedSink(TrajectorySink):
    """Holds trajectories until the buffer is full, its oldest is old, or somebody flushes."""

    def __init__(self, url: str, settings: SinkSettings) -> None:
        self._url = url
        self._settings = settings
        self._lock = threading.RLock()
        self._is_closed = False
        self._held: list[TrajectoryBlock] = []
        self._held_ids: set[bytes] = set()
        self._num_held_bytes = 0
        self._held_since_s = 0.0

    @property
    def url(self) -> str:
        return self._url

    @property
    def num_held(self) -> int:
        """Trajectories that were taken and are not durable yet."""
        return len(self._held_ids)

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        with self._lock:
            self._require_open("write")
            blocks = self._check(trajectories)
            self._make_room()
            for block in blocks:
                self._hold(block)

    def flush(self) -> None:
        with self._lock:
            self._require_open("flush")
            if not self._held_ids:
                return
            self._persist(tuple(self._held))
            self._let_go()

    def abandon(self, trajectory_ids: Collection[UUID]) -> None:
        with self._lock:
            self._require_open("abandon")
            if trajectory_ids:
                self._mark(trajectory_ids)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                self.flush()
            finally:
                self._is_closed = True
                self._let_go()
                self._release()

    def _hold(self, block: TrajectoryBlock) -> None:
        new = block.without(self._held_ids)
        if new is not None:
            self._held.append(new)
            self._note_held(new.trajectory_ids, new.num_bytes)

    def _note_held(self, trajectory_ids: Collection[bytes], num_bytes: int) -> None:
        self._held_ids.update(trajectory_ids)
        self._num_held_bytes += num_bytes

    def _make_room(self) -> None:
        """Flush what is due before more is taken."""
        if self._is_due():
            self.flush()
        if not self._held_ids:
            self._held_since_s = time.monotonic()

    def _let_go(self) -> None:
        self._held.clear()
        self._held_ids.clear()
        self._num_held_bytes = 0

    def _check(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryBlock]:
        """The trajectories as they will be stored; `ConfigError` if one cannot be."""
        return checked_blocks(trajectories)

    @abstractmethod
    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
        """Make blocks durable; `SinkWriteError` otherwise. May be called again with what a failed call had."""

    @abstractmethod
    def _mark(self, trajectory_ids: Collection[UUID]) -> None:
        """Mark trajectories as abandoned, durably; `SinkWriteError` otherwise."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of files and connections."""

    def _is_due(self) -> bool:
        if not self._held_ids:
            return False
        age_s = time.monotonic() - self._held_since_s
        return self._num_held_bytes >= self._settings.max_buffered_bytes or age_s >= self._settings.max_buffered_s

    def _require_open(self, method: str) -> None:
        if self._is_closed:
            raise SinkClosedError(f"{method}() after close() on {self._url}; open a new sink to append")


_ranges: dict[int, _ValueRanges] = {}
"""By the id of a layout, which the ranges keep alive."""


def checked_blocks(trajectories: Sequence[Trajectory]) -> list[TrajectoryBlock]:
    """The trajectories as they are stored; `ConfigError` says what is wrong with one of them."""
    blocks = layout_book().blocks(trajectories)
    for block in blocks:
        ranges = _ranges.get(id(block.layout))
        if ranges is None:
            ranges = _ranges[id(block.layout)] = _ValueRanges(block.layout)
        ranges.check(block)
    return blocks


class _ValueRanges:
    """The columns of a layout that hold choices."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        observations = [space for _, space in space_leaves(layout.observation_space)]
        actions = [space for _, space in space_leaves(layout.action_space)]
        names = [leaf.name for leaf in (*layout.observation, *layout.action)]
        self._steps = _choices(names, (*observations, *actions))
        self._finals = _choices([f"final_{name}" for name in names], observations)
        self._mask_width, self._expected_width = layout.mask_width, num_options(layout.action_space)

    def check(self, block: TrajectoryBlock) -> None:
        """`ConfigError` names the first trajectory, column and row that is out of range."""
        if None not in (self._mask_width, self._expected_width) and self._mask_width != self._expected_width:
            what = f"column 'action_mask' has {self._mask_width} entries a row, expected {self._expected_width}"
            raise ConfigError(f"{name_of(block.headers, 0)}: {what}")
        for i, name, low, high in self._steps:
            require_rows(block.headers, name, block.arrays[_FIRST_LEAF + i], low, high)
        for i, name, low, high in self._finals:
            final = block.finals[i]
            if not _is_within(final, low, high):
                k, value = _first_outside(final, low, high)
                raise ConfigError(f"{name_of(block.headers, k)}: {name!r} is {value}, {_expected(low, high)}")


def num_options(space: Space) -> int | None:
    """How many options a choice has, those of its parts together; None where a space is no choice."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else None


def require_rows(headers: TrajectoryHeaders, name: str, column: Array, low: Array, high: Array) -> None:
    """`ConfigError` unless every element of a column `[R, …]` is at least `low` and at most `high`."""
    if not _is_within(column, low, high):
        row, value = _first_outside(column, low, high)
        raise ConfigError(f"{row_name(headers, name, row)} is {value}, {_expected(low, high)}")


def row_name(headers: TrajectoryHeaders, column: str, row: int) -> str:
    """A row of a block's column, by its trajectory and its number in it."""
    k = int(np.searchsorted(headers.ends, row, "right"))
    first = int(headers.ends[k] - headers.num_steps[k])
    return f"{name_of(headers, k)}: column {column!r} in row {row - first}"


def _choices(names: Sequence[str], leaves: Sequence[Space]) -> list[tuple[int, str, Array, Array]]:
    """Number, name, least and greatest value of every leaf that is a choice."""
    bounds = ((i, names[i], value_bounds(space)) for i, space in enumerate(leaves))
    return [(i, name, *found) for i, name, found in bounds if found is not None]


def _is_within(column: Array, low: Array, high: Array) -> bool:
    """By the extremes of each element over all rows, without a temporary array of the column's length."""
    if not column.size:
        return True
    axis = None if low.ndim == 0 else 0
    least, most = (np.asarray(extreme).astype(object) for extreme in (column.min(axis), column.max(axis)))
    return bool(np.all(least >= low) and np.all(most <= high))


def _first_outside(column: Array, low: Array, high: Array) -> tuple[int, object]:
    numbers = column.astype(object)
    where = np.argwhere(((numbers < low) | (numbers > high)).astype(bool))[0]
    return int(where[0]), numbers[tuple(where)]


def _expected(low: Array, high: Array) -> str:
    return f"expected {low.tolist()} to {high.tolist()}"
