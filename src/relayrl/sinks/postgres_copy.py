"""PostgreSQL's binary COPY stream, built in NumPy: no Python object per step, no text.

    stream   "PGCOPY\\n\\xff\\r\\n\\0", int32 flags, int32 extension length; rows; int16 -1
    row      int16 number of fields; for each int32 length (-1: NULL) and its bytes, numbers big-endian
    array    int32 number of axes, int32 has nulls, int32 element type; int32 length, int32 first index; elements as fields

See https://www.postgresql.org/docs/current/sql-copy.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.sinks.checked_trajectory import CheckedTrajectory
from relayrl.sinks.database_rows import DATA, HEADER, action_elements, data_of, headers

BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"
COPY_TRAJECTORIES = f"COPY trajectories ({', '.join((*HEADER, *DATA))}) FROM STDIN (FORMAT binary)"
COPY_STEPS = "COPY steps (trajectory, step, policy_version, reward, logp, value, action) FROM STDIN (FORMAT binary)"
_FLOAT8_TYPE = 701
_PIECE_BYTES = 1 << 18
"""The server works on a piece while the next one is made."""
_STEP_BYTES = 100
"""About what a step takes in the stream."""
_LENGTH = struct.Struct(">i")
# Field count, then the header's fields of fixed size, each behind its length.
_FIXED = struct.Struct(">h iq i16s i16s iq iq iq iq i? i? i? iq iq id")


def trajectory_rows(
    records: Sequence[CheckedTrajectory], keys: Sequence[int], layout_keys: Sequence[int]
) -> Iterator[bytes]:
    """The stream of `COPY_TRAJECTORIES`, in pieces of many rows."""
    num_fields = len(HEADER) + len(DATA)
    pieces: list[Any] = [BEGIN]
    num_bytes = 0
    for record, header in zip(records, headers(records, keys, layout_keys), strict=True):
        key, trajectory_id, env_id, layout_key, episode, first_step, num_steps = header[:7]
        terminated, truncated, failed, min_version, max_version, episode_return, group, agent_id = header[7:]
        pieces.append(
            _FIXED.pack(
                *(num_fields, 8, key, 16, trajectory_id.bytes, 16, env_id.bytes, 8, layout_key),
                *(8, episode, 8, first_step, 8, num_steps, 1, terminated, 1, truncated, 1, failed),
                *(8, min_version, 8, max_version, 8, episode_return),
            )
        )
        for data in (group.encode(), agent_id.encode(), *data_of(record)):
            pieces += (_LENGTH.pack(len(data) if type(data) is bytes else data.nbytes), data)
        num_bytes += record.num_bytes
        if num_bytes >= _PIECE_BYTES:
            yield b"".join(pieces)
            pieces, num_bytes = [], 0
    yield b"".join([*pieces, END])


def step_rows(records: Sequence[CheckedTrajectory], keys: Sequence[int]) -> Iterator[memoryview | bytes]:
    """The stream of `COPY_STEPS`, in pieces of many rows."""
    yield BEGIN
    pairs = zip(records, keys, strict=True)
    for _, group in groupby(pairs, key=lambda pair: id(pair[0].layout)):
        some: list[tuple[CheckedTrajectory, int]] = []
        num_bytes = 0
        for pair in group:
            some.append(pair)
            num_bytes += _STEP_BYTES * pair[0].num_steps
            if num_bytes >= _PIECE_BYTES:
                yield _steps(some)
                some, num_bytes = [], 0
        if some:
            yield _steps(some)
    yield END


def _steps(pairs: list[tuple[CheckedTrajectory, int]]) -> memoryview:
    """Rows of trajectories that have the same layout, as bytes."""
    records = [record for record, _ in pairs]
    layout, trajectories = records[0].layout, [record.trajectory for record in records]
    lengths = np.array([record.num_steps for record in records])
    begins = np.cumsum(lengths) - lengths
    leaves = [np.concatenate(parts) for parts in zip(*map(action_elements, records), strict=True)]
    num_elements = sum(leaf.shape[1] for leaf in leaves)
    rows = np.zeros(int(lengths.sum()), _row_dtype(layout.has_logp, layout.has_value, num_elements))
    rows["fields"] = 7
    first_steps = np.array([trajectory.first_step for trajectory in trajectories], np.int64) - begins
    columns: dict[str, Any] = {
        "trajectory": np.repeat(np.array([key for _, key in pairs], np.int64), lengths),
        "step": np.repeat(first_steps, lengths) + np.arange(len(rows)),
        "policy_version": np.concatenate([trajectory.policy_version for trajectory in trajectories]),
        "reward": np.concatenate([trajectory.reward for trajectory in trajectories]),
    }
    for name in ("logp", "value"):
        if getattr(layout, f"has_{name}"):
            columns[name] = np.concatenate([getattr(trajectory, name) for trajectory in trajectories])
        else:
            rows[f"{name}_length"] = -1
    for name, column in columns.items():
        rows[f"{name}_length"] = rows.dtype[name].itemsize
        rows[name] = column
    _fill_actions(rows, leaves, num_elements)
    return rows.view(np.uint8).data


def _row_dtype(has_logp: bool, has_value: bool, num_elements: int) -> np.dtype[Any]:
    fields: list[Any] = [("fields", ">i2")]
    kinds = {"trajectory": ">i8", "step": ">i8", "policy_version": ">i8", "reward": ">f4"}
    kinds |= {name: ">f4" if present else "" for name, present in (("logp", has_logp), ("value", has_value))}
    for name, kind in kinds.items():
        fields.append((f"{name}_length", ">i4"))
        if kind:
            fields.append((name, kind))
    fields += [("action_length", ">i4"), ("num_axes", ">i4"), ("has_nulls", ">i4"), ("element_type", ">i4")]
    if num_elements:
        element = np.dtype([("length", ">i4"), ("number", ">f8")])
        fields += [("num_elements", ">i4"), ("first_index", ">i4"), ("elements", element, (num_elements,))]
    return np.dtype(fields)


def _fill_actions(rows: Array, leaves: list[Array], num_elements: int) -> None:
    rows["element_type"] = _FLOAT8_TYPE
    if num_elements == 0:  # an array without axes
        rows["action_length"] = 12
        return
    rows["action_length"] = 20 + 12 * num_elements
    rows["num_axes"] = rows["first_index"] = 1
    rows["num_elements"] = num_elements
    rows["elements"]["length"] = 8
    numbers, begin = rows["elements"]["number"], 0
    with np.errstate(all="ignore"):
        for leaf in leaves:
            numbers[:, begin : begin + leaf.shape[1]] = leaf
            begin += leaf.shape[1]
