"""Trajectories as rows of the tables `trajectories` and `steps`, and back; the same for every database.

A row of `trajectories` is a whole trajectory: its header in plain columns, and its arrays as binary columns, each the leaves
of `relayrl.data.schema` one after the other, `[T, …]`, little-endian, in C order. Those are what is read back, bit for bit.
Global states stand behind the memory in `memory_data`, the last one behind the last observation in `final_obs_data`.
`steps` repeats what people ask about, a row per step in plain columns, for queries only: `step`, `policy_version`, `reward`,
`logp`, `value` and the action's elements.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.schema import LOGP, POLICY_VERSION, REWARD, VALUE, Layout, Leaf
from relayrl.data.trees import Array, unflatten
from relayrl.errors import ConfigError, DecodeError
from relayrl.sinks.checked_trajectory import CheckedTrajectory
from relayrl.sinks.layout_json import layout_to_json
from relayrl.sinks.row_batches import step_fields
from relayrl.sinks.text_escapes import escape_for_database, unescape

Bytes: TypeAlias = bytes | Array
"""What drivers take as a binary field: bytes, or an array whose memory has the same order."""
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
    "final_obs_data",
)
_MAX_FIELD_BYTES = 1_000_000_000
"""PostgreSQL takes 1 GiB in a field, SQLite 10**9 bytes."""


def headers(
    records: Sequence[CheckedTrajectory], keys: Sequence[int], layout_keys: Sequence[int]
) -> list[tuple[Any, ...]]:
    """The plain columns of each trajectory, in the order of `HEADER`."""
    if not records:
        return []
    lengths = np.array([record.num_steps for record in records])
    begins = np.cumsum(lengths) - lengths
    versions = np.concatenate([record.trajectory.policy_version for record in records])
    rewards = np.concatenate([record.trajectory.reward for record in records])
    with np.errstate(all="ignore"):
        returns = np.add.reduceat(rewards, begins, dtype=np.float64).tolist()
    oldest, newest = (reduce(versions, begins).tolist() for reduce in (np.minimum.reduceat, np.maximum.reduceat))
    return [
        (
            keys[i],
            trajectory.trajectory_id,
            trajectory.env_id,
            layout_keys[i],
            trajectory.episode,
            trajectory.first_step,
            num_steps,
            trajectory.terminated,
            trajectory.truncated,
            trajectory.failed,
            oldest[i],
            newest[i],
            returns[i],
            escape_for_database(trajectory.group),
            escape_for_database(trajectory.agent_id),
        )
        for i, (trajectory, _, _, _, num_steps, _) in enumerate(records)
    ]


def require_fits(record: CheckedTrajectory) -> CheckedTrajectory:
    """The record itself; `ConfigError` if it is longer than databases take."""
    if record.num_bytes > _MAX_FIELD_BYTES:
        raise ConfigError(
            f"a trajectory of {record.num_steps} steps has {record.num_bytes} bytes, too many for a database; cut it into "
            "shorter ones, or record to arrow: or parquet:"
        )
    return record


def data_of(record: CheckedTrajectory) -> tuple[Bytes, ...]:
    """The binary columns, in the order of `DATA`; they share the arrays' memory where they can."""
    arrays, layout = record.arrays, record.layout
    counts = (1, 1, len(layout.observation), len(layout.action), layout.action_mask is not None)
    found, begin = [], 0
    for count in (*counts, layout.has_logp, layout.has_value, len(layout.memory) + len(layout.state)):
        found.append(_joined(arrays[begin : begin + count]))
        begin += count
    return (*found, _joined(record.final))


def data_leaves(layout: Layout) -> dict[str, list[Leaf]]:
    """Which leaves stand in each of the binary columns, `final_obs_data` aside."""
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
    return text, hashlib.sha256(text.encode()).hexdigest()


def action_elements(record: CheckedTrajectory) -> list[Array]:
    """The action's leaves as `[T, width]`."""
    first = 2 + len(record.layout.observation)
    leaves = record.arrays[first : first + len(record.layout.action)]
    return [leaf.reshape(len(leaf), -1) for leaf in leaves]


def trajectory_of(row: Mapping[str, Any], layout: Layout) -> Trajectory:
    """The trajectory of a row of `trajectories`; `DecodeError` where its columns contradict each other."""
    T = int(row["num_steps"])
    columns: dict[str, Array] = {}
    for name, leaves in data_leaves(layout).items():
        columns |= dict(zip((leaf.name for leaf in leaves), _split(row[name], leaves, (T,), name), strict=True))
    final = iter(_split(row["final_obs_data"], layout.successor, (), "final_obs_data"))
    if T < 1 or unescape(row["agent_group"]) != layout.group or (row["failed"] and not row["truncated"]):
        raise DecodeError(f"the row of trajectory {row['trajectory_id']} contradicts itself or its layout")
    return Trajectory(
        trajectory_id=_uuid(row["trajectory_id"]),
        env_id=_uuid(row["env_id"]),
        agent_id=unescape(row["agent_id"]),
        group=layout.group,
        observation_space=layout.observation_space,
        action_space=layout.action_space,
        episode=int(row["episode"]),
        first_step=int(row["first_step"]),
        terminated=bool(row["terminated"]),
        truncated=bool(row["truncated"]),
        failed=bool(row["failed"]),
        final_obs=unflatten(layout.observation_space, final),
        final_state=None if layout.state_space is None else unflatten(layout.state_space, final),
        **step_fields(layout, columns),
    )


def _joined(arrays: Sequence[Array]) -> Bytes:
    if len(arrays) == 1 and arrays[0].flags.c_contiguous and arrays[0].size and sys.byteorder == "little":
        return arrays[0]
    if sys.byteorder == "big":
        arrays = [array.byteswap() for array in arrays]
    return b"".join(array.tobytes() for array in arrays)


def _split(data: bytes, leaves: list[Leaf], leading: tuple[int, ...], name: str) -> list[Array]:
    """The leaves of a binary column as read-only arrays `[*leading, *leaf.shape]`."""
    num_rows = leading[0] if leading else 1
    sizes = [num_rows * leaf.width * leaf.dtype.itemsize for leaf in leaves]
    if len(data) != sum(sizes):
        raise DecodeError(f"column {name!r} has {len(data)} bytes, expected {sum(sizes)}")
    found, offset = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        dtype = leaf.dtype.newbyteorder("<")
        array = np.frombuffer(data, dtype, num_rows * leaf.width, offset) if size else np.empty(0, dtype)
        if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise DecodeError(f"column {name!r} has a truth value that is neither 0 nor 1")
        array = array.astype(leaf.dtype, copy=False).reshape((*leading, *leaf.shape))
        array.flags.writeable = False
        found.append(array)
        offset += size
    return found


def _uuid(value: object) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError as error:
        raise DecodeError(f"an id is no UUID: {error}") from error
