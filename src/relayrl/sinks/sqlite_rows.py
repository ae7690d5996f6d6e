"""How trajectories and their steps are put into SQLite's tables.

SQLite has neither arrays nor NaN. An action of one element is that number; any other is a JSON array, so that
`json_extract(action, '$[1]')` gives its second element. NaN, and an infinite element of an array, are NULL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from relayrl.data.trees import Array
from relayrl.sinks.checked_trajectory import CheckedTrajectory
from relayrl.sinks.database_rows import DATA, HEADER, action_elements, data_of, headers

STEP_COLUMNS = ('"row"', "trajectory", "step", "policy_version", "reward", "logp", "value", "action")
_ROWS_PER_STATEMENT = 256
_INSERT_TRAJECTORY = (
    f"INSERT INTO trajectories ({', '.join((*HEADER, *DATA))}) VALUES ({', '.join('?' * len((*HEADER, *DATA)))})"
)
_INSERT_STEPS = f"INSERT INTO steps ({', '.join(STEP_COLUMNS)}) VALUES "
_ONE_STEP = f"({', '.join('?' * len(STEP_COLUMNS))})"


def insert_trajectories(
    connection: sqlite3.Connection,
    records: Sequence[CheckedTrajectory],
    keys: Sequence[int],
    layout_keys: Sequence[int],
) -> None:
    """A row for each."""
    rows = zip(headers(records, keys, layout_keys), map(data_of, records), strict=True)
    values = (
        (key, str(trajectory_id), str(env_id), *rest, *data) for (key, trajectory_id, env_id, *rest), data in rows
    )
    connection.executemany(_INSERT_TRAJECTORY, values)


def insert_steps(connection: sqlite3.Connection, records: Sequence[CheckedTrajectory], keys: Sequence[int]) -> None:
    """A row per step. Many rows per statement take less time than one each (ADR 0005)."""
    cells = list(chain.from_iterable(zip(*step_rows(records, keys), strict=True)))
    wide, narrow = _ROWS_PER_STATEMENT * len(STEP_COLUMNS), len(STEP_COLUMNS)
    end = len(cells) // wide * wide
    many = _INSERT_STEPS + ", ".join([_ONE_STEP] * _ROWS_PER_STATEMENT)
    connection.executemany(many, (cells[i : i + wide] for i in range(0, end, wide)))
    connection.executemany(_INSERT_STEPS + _ONE_STEP, (cells[i : i + narrow] for i in range(end, len(cells), narrow)))


def step_rows(records: Sequence[CheckedTrajectory], keys: Sequence[int]) -> list[list[Any]]:
    """One list per column of `STEP_COLUMNS`; steps of the trajectory with key `k` are the rows from `k` on."""
    if not records:
        return [[] for _ in STEP_COLUMNS]
    lengths = np.array([record.num_steps for record in records])
    first_rows = np.array(keys, np.int64)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    first_steps = np.array([record.trajectory.first_step for record in records], np.int64)
    trajectories = [record.trajectory for record in records]
    return [
        (np.repeat(first_rows, lengths) + within).tolist(),
        np.repeat(first_rows, lengths).tolist(),
        (np.repeat(first_steps, lengths) + within).tolist(),
        np.concatenate([trajectory.policy_version for trajectory in trajectories]).tolist(),
        np.concatenate([trajectory.reward for trajectory in trajectories]).tolist(),
        _optional([trajectory.logp for trajectory in trajectories], lengths),
        _optional([trajectory.value for trajectory in trajectories], lengths),
        _actions(records),
    ]


def _optional(columns: Sequence[Array | None], lengths: Array) -> list[Any]:
    if all(column is not None for column in columns):
        present: list[Any] = np.concatenate([column for column in columns if column is not None]).tolist()
        return present
    found: list[Any] = []
    for column, length in zip(columns, lengths.tolist(), strict=True):
        found += [None] * length if column is None else column.tolist()
    return found


def _actions(records: Sequence[CheckedTrajectory]) -> list[Any]:
    """Consecutive trajectories of one layout are formatted together."""
    found: list[Any] = []
    begin = 0
    for i, record in enumerate(records):
        if i + 1 == len(records) or records[i + 1].layout is not record.layout:
            leaves = zip(*(action_elements(each) for each in records[begin : i + 1]), strict=True)
            num_rows = sum(each.num_steps for each in records[begin : i + 1])
            found += _cells([np.concatenate(parts) for parts in leaves], num_rows)
            begin = i + 1
    return found


def _cells(leaves: list[Array], num_rows: int) -> list[Any]:
    if sum(leaf.shape[1] for leaf in leaves) == 1:
        (single,) = (leaf for leaf in leaves if leaf.shape[1])
        # An integer of SQLite has 64 bits with a sign.
        return (single.astype(np.float64) if single.dtype == np.uint64 else single).reshape(-1).tolist()
    texts = [_joined(leaf) for leaf in leaves if leaf.shape[1]]
    if not texts:
        return ["[]"] * num_rows
    inner = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, ",")
    wrapped: list[Any] = pc.binary_join_element_wise("[", inner, "]", "").to_pylist()
    return wrapped


def _joined(leaf: Array) -> pa.Array:
    """`[T, A]` as texts of numbers with commas between."""
    flat = leaf.reshape(-1)
    flat = flat.astype(np.float32) if flat.dtype == np.float16 else flat
    elements = pa.array(flat.view(np.uint8) if flat.dtype == bool else flat).cast(pa.string())
    if flat.dtype.kind == "f" and not (is_finite := np.isfinite(flat)).all():
        elements = pc.if_else(pa.array(is_finite), elements, "null")
    offsets = pa.array(np.arange(0, flat.size + 1, leaf.shape[1], dtype=np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, elements), ",")
