"""Whether the values of a block can be what its spaces say, looked at column by column; errors name the trajectory.

Of choices (`Discrete`, `MultiDiscrete`, `MultiBinary`) every element must be one of the options, and a mask has an entry for
each of them. Elements of a `Box` may be anything that its dtype holds: a Gaussian acts outside of the bounds.

Not its job: shapes and dtypes (`layout_book`), or what may be learned from (`training.facade`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow.layout_book import layout_book, name_of
from relayrl.data.arrow.schema import Layout
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, Space, space_leaves
from relayrl.errors import ConfigError

_FIRST_LEAF = 2
"""Of observations in `TrajectoryBlock.arrays`, behind reward and policy version; actions follow."""


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


def value_bounds(space: Space) -> tuple[Array, Array] | None:
    """Least and greatest value of a choice, as Python's integers: those of its dtype may not reach; None for a `Box`."""
    if isinstance(space, spaces.Discrete):
        return _integers(int(space.start)), _integers(int(space.start) + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        low = _integers(space.start)
        return low, low + _integers(space.nvec) - 1
    return (_integers(0), _integers(1)) if isinstance(space, spaces.MultiBinary) else None


def _integers(numbers: Any) -> Array:
    return np.array(numbers).astype(object)


def _choices(names: Sequence[str], leaves: Sequence[Space]) -> list[tuple[int, str, Array, Array]]:
    """Number, name, least and greatest value of every leaf that is a choice."""
    bounds = ((i, names[i], value_bounds(space)) for i, space in enumerate(leaves))
    return [(i, name, *found) for i, name, found in bounds if found is not None]


def _is_within(column: Array, low: Array, high: Array) -> bool:
    """By the extremes of each element over all rows, without a temporary array of the column's length."""
    if not column.size:
        return True
    axis = None if low.ndim == 0 else 0
    least, most = (_integers(extreme) for extreme in (column.min(axis), column.max(axis)))
    return bool(np.all(least >= low) and np.all(most <= high))


def _first_outside(column: Array, low: Array, high: Array) -> tuple[int, object]:
    numbers = column.astype(object)
    where = np.argwhere(((numbers < low) | (numbers > high)).astype(bool))[0]
    return int(where[0]), numbers[tuple(where)]


def _expected(low: Array, high: Array) -> str:
    return f"expected {low.tolist()} to {high.tolist()}"
