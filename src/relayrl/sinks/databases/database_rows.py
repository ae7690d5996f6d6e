"""Trajectories as rows of the tables `trajectories` and `steps`, and back; the same for every database.

A row of `trajectories` is a whole trajectory: its header in plain columns, and its arrays as binary columns, each the leaves
of `relayrl.data.arrow.schema` one after the other, `[T, …]`, little-endian, in C order. Those are what is read back, bit for
bit. Global states stand behind the memory in `memory_data`, the last one behind the last observation in `final_obs_data`;
the last action mask stands behind both. `step_data` holds the environment's steps where they do not count on from `first_step`.
`end_step` and `last_step` are −1 where nobody knows the environment's steps.
`steps` repeats what people ask about, a row per step in plain columns, for queries only: `step`, `policy_version`, `reward`,
`logp`, `value` and the action's elements.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np

from relayrl.data.arrow.layout_book import check_steps
from relayrl.data.arrow.schema import LOGP, POLICY_VERSION, REWARD, STEP, VALUE, Layout, Leaf
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array
from relayrl.errors import ConfigError, DecodeError
from relayrl.sinks.databases.layout_json import layout_to_json
from relayrl.sinks.text_escapes import escape_for_database, unescape

Bytes: TypeAlias = bytes | memoryview
"""What drivers take as a binary field."""
RowBytes: TypeAlias = list[tuple[memoryview, int]]
"""The bytes of arrays, and how many a row of each has."""
HEADER = (
    "trajectory",
    "trajectory_id",
    "env_id",
    "layout",
    "episode",
    "first_step",
    "num_steps",
    "terminated",
    "truncated",
    "failed",
    "min_policy_version",
    "max_policy_version",
    "episode_return",
    "end_step",
    "last_step",
    "agent_group",
    "agent_id",
)
DATA = (
    "reward_data",
    "policy_version_data",
    "obs_data",
    "action_data",
    "action_mask_data",
    "logp_data",
    "value_data",
    "memory_data",
    "step_data",
    "final_obs_data",
)
BEFORE_STEPS = {"end_step": "-1", "last_step": "-1"}
"""What stands for the columns that a database of an older version does not have; `step_data` is empty there."""
_MAX_FIELD_BYTES = 1_000_000_000
"""PostgreSQL takes 1 GiB in a field, SQLite 10**9 bytes."""


def headers(block: TrajectoryBlock, keys: Sequence[int], layout_key: int) -> list[tuple[Any, ...]]:
    """The plain columns of each trajectory, in the order of `HEADER`; ids are bytes."""
    return list(zip(*plain_columns(block, keys, layout_key), strict=True))


def plain_columns(block: TrajectoryBlock, keys: Sequence[int], layout_key: int) -> tuple[Sequence[Any], ...]:
    """The same, column by column."""
    found, begins = block.headers, block.headers.ends - block.headers.num_steps
    rewards, versions = block.column(REWARD), block.column(POLICY_VERSION)
    with np.errstate(all="ignore"):
        returns = np.add.reduceat(rewards, begins, dtype=np.float64).tolist()
    group = escape_for_database(block.layout.group)
    return (
        keys,
        found.trajectory_ids,
        found.env_ids,
        [layout_key] * len(block),
        found.episode.tolist(),
        found.first_step.tolist(),
        found.num_steps.tolist(),
        found.terminated.tolist(),
        found.truncated.tolist(),
        found.failed.tolist(),
        np.minimum.reduceat(versions, begins).tolist(),
        np.maximum.reduceat(versions, begins).tolist(),
        returns,
        *_covered(block),
        [group] * len(block),
        [escape_for_database(name) for name in found.agent_ids],
    )


def _covered(block: TrajectoryBlock) -> tuple[list[int], list[int]]:
    """`end_step` and `last_step`."""
    found = block.headers
    if found.end_step is None:
        return [-1] * len(block), [-1] * len(block)
    last = found.first_step + found.num_steps - 1 if block.steps is None else block.steps[found.ends - 1]
    return found.end_step.tolist(), last.tolist()


def require_fits(block: TrajectoryBlock) -> TrajectoryBlock:
    """The block itself; `ConfigError` if one of its trajectories is longer than databases take."""
    longest = int(block.headers.num_steps.max())
    num_bytes = longest * sum(array.nbytes for array in block.arrays) // block.num_rows
    if num_bytes > _MAX_FIELD_BYTES:
        raise ConfigError(
            f"a trajectory of {longest} steps has {num_bytes} bytes, too many for a database; cut it into "
            "shorter ones, or record to arrow: or parquet:"
        )
    return block


def data_of(block: TrajectoryBlock) -> Iterator[tuple[Bytes, ...]]:
    """The binary columns of each trajectory, in the order of `DATA`; they share the arrays' memory where they can."""
    columns, finals = data_columns(block)
    first = 0
    for i, end in enumerate(block.headers.ends.tolist()):
        yield (*[_joined(column, first, end) for column in columns], _joined(finals, i, i + 1))
        first = end


def data_columns(block: TrajectoryBlock) -> tuple[list[RowBytes], RowBytes]:
    """What each of `DATA` is made of, the last one aside: the rows of leaves, one leaf after the other; and the last one."""
    layout, arrays = block.layout, block.arrays
    counts = (1, 1, len(layout.observation), len(layout.action), layout.action_mask is not None)
    columns, begin = [], 0
    for count in (*counts, layout.has_logp, layout.has_value, len(layout.memory) + len(layout.state)):
        columns.append(_row_bytes(arrays[begin : begin + count]))
        begin += count
    columns.append([] if block.steps is None else _row_bytes([block.steps]))
    return columns, _row_bytes(block.finals)


def data_leaves(layout: Layout) -> dict[str, list[Leaf]]:
    """Which leaves stand in each of the binary columns, `step_data` and `final_obs_data` aside."""
    return {
        "reward_data": [REWARD],
        "policy_version_data": [POLICY_VERSION],
        "obs_data": layout.observation,
        "action_data": layout.action,
        "action_mask_data": [] if layout.action_mask is None else [layout.action_mask],
        "logp_data": [LOGP] if layout.has_logp else [],
        "value_data": [VALUE] if layout.has_value else [],
        "memory_data": [*layout.memory, *layout.state],
    }


def layout_text_and_digest(layout: Layout) -> tuple[str, str]:
    """What the table `layouts` holds of a layout: its JSON, and a digest by which it is found."""
    text = layout_to_json(layout)
    return text, layout_digest(text)


def layout_digest(text: str) -> str:
    """Of the JSON of a layout."""
    return hashlib.sha256(text.encode()).hexdigest()


class LayoutKeys:
    """Which row of the table `layouts` stands for each layout, for a connection's life; remembered once it is committed."""

    def __init__(self) -> None:
        self._committed: dict[int, tuple[Layout, int]] = {}  # the layout keeps its id alive
        self._pending: dict[int, tuple[Layout, int]] = {}

    def begin(self) -> None:
        """A transaction begins; what an earlier one did not commit is not there."""
        self._pending.clear()

    def key(self, layout: Layout, find_or_make: Callable[[str, str], int]) -> int:
        """The key of a layout; `find_or_make` gets its JSON and digest where it is not known yet."""
        known = self._committed.get(id(layout)) or self._pending.get(id(layout))
        if known is None:
            known = self._pending[id(layout)] = (layout, find_or_make(*layout_text_and_digest(layout)))
        return known[1]

    def commit(self) -> None:
        """The transaction is durable."""
        self._committed.update(self._pending)

    def forget(self) -> None:
        """The connection is gone."""
        self._committed.clear()
        self._pending.clear()


def action_elements(block: TrajectoryBlock) -> list[Array]:
    """The action's leaves as `[R, width]`."""
    first = 2 + len(block.layout.observation)
    leaves = block.arrays[first : first + len(block.layout.action)]
    return [leaf.reshape(len(leaf), prod(leaf.shape[1:])) for leaf in leaves]


def row_numbers(block: TrajectoryBlock) -> tuple[Array, Array]:
    """`[R]` which trajectory each row belongs to, and its step."""
    return np.repeat(np.arange(len(block)), block.headers.num_steps), block.row_steps()


def trajectory_of(row: Mapping[str, Any], layout: Layout) -> Trajectory:
    """The trajectory of a row of `trajectories`; `DecodeError` where its columns contradict each other."""
    T = int(row["num_steps"])
    arrays = [a for name, leaves in data_leaves(layout).items() for a in _split(row[name], leaves, T, name)]
    finals = _split(row["final_obs_data"], layout.followed, 1, "final_obs_data")
    knows_steps = int(row["end_step"]) >= 0
    steps = _split(row["step_data"], [STEP], T, "step_data")[0] if len(row["step_data"]) else None
    if (
        T < 1
        or unescape(row["agent_group"]) != layout.group
        or (row["failed"] and not row["truncated"])
        or knows_steps != layout.knows_steps
        or (steps is not None and not knows_steps)
    ):
        raise DecodeError(f"the row of trajectory {row['trajectory_id']} contradicts itself or its layout")
    header = TrajectoryHeaders(
        [_uuid(row["trajectory_id"]).bytes],
        [_uuid(row["env_id"]).bytes],
        [unescape(row["agent_id"])],
        *(np.array([row[name]], np.int64) for name in ("episode", "first_step", "num_steps")),
        *(np.array([row[name]], bool) for name in ("terminated", "truncated", "failed")),
        end_step=np.array([row["end_step"]], np.int64) if knows_steps else None,
    )
    try:
        check_steps(header, steps)
    except ConfigError as error:
        raise DecodeError(str(error)) from error
    return TrajectoryBlock(layout, header, tuple(arrays), tuple(finals), steps).read_only()[0]


def _row_bytes(arrays: Sequence[Array]) -> RowBytes:
    """The bytes of each array, in C order and little-endian, and how many a row has."""
    if sys.byteorder == "big":
        arrays = [array.byteswap() for array in arrays]
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    return [(data, array.nbytes // len(array)) for data, array in zip(flat, arrays, strict=True)]


def _joined(columns: RowBytes, begin: int, end: int) -> Bytes:
    if len(columns) == 1 and columns[0][1]:  # drivers take an empty view for NULL
        ((data, size),) = columns
        return data[begin * size : end * size]
    return b"".join([data[begin * size : end * size] for data, size in columns])


def _split(data: bytes, leaves: list[Leaf], num_rows: int, name: str) -> list[Array]:
    """The leaves of a binary column as read-only arrays `[num_rows, *leaf.shape]`."""
    sizes = [num_rows * leaf.width * leaf.dtype.itemsize for leaf in leaves]
    if len(data) != sum(sizes):
        raise DecodeError(f"column {name!r} has {len(data)} bytes, expected {sum(sizes)}")
    found, offset = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        dtype = leaf.dtype.newbyteorder("<")
        array = np.frombuffer(data, dtype, num_rows * leaf.width, offset) if size else np.empty(0, dtype)
        if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise DecodeError(f"column {name!r} has a truth value that is neither 0 nor 1")
        found.append(array.astype(leaf.dtype, copy=False).reshape((num_rows, *leaf.shape)))
        offset += size
    return found


def _uuid(value: object) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError as error:
        raise DecodeError(f"an id is no UUID: {error}") from error
