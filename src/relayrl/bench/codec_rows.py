"""Encoding and decoding a rollout of a million steps, beside plain pyarrow on the same columns.

The floor writes the rollout's own columns (observations, action, reward, four flags, log-probability, value, policy
version) as any pyarrow program would: NumPy arrays to a record batch, to an IPC stream, to bytes, and back to NumPy.
RelayRL's message holds more (who acted, episode and step numbers, final observations, spaces) and checks all of it when
reading.
"""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from relayrl.bench.rows import Row, interleaved, seconds_of
from relayrl.data.arrow.codec import Compression, decode_rollout, encode
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.trees import Array

NUM_STEPS, NUM_LANES, NUM_OBSERVATIONS = 15_625, 64, 8
TARGET_RATIO = 0.60


def codec_rows() -> list[Row]:
    """One row per compression."""
    rollout = example_rollout(NUM_STEPS, NUM_LANES)
    return [_row(rollout, compression) for compression in Compression]


def _row(rollout: Rollout, compression: Compression) -> Row:
    columns = plain_columns(rollout)

    def ours() -> float:
        return seconds_of(lambda: decode_rollout(encode(rollout, compression)))

    def floor() -> float:
        return seconds_of(lambda: plain_arrow_round_trip(columns, compression))

    ours(), floor()
    seconds, floor_seconds = interleaved(ours, floor, repetitions=7)
    num_rows = rollout.num_steps * rollout.num_lanes
    name = "encode and decode 1M steps"
    return Row(
        name=name if compression is Compression.NONE else f"{name}, {compression.name.lower()}",
        figure=num_rows / seconds,
        unit="steps/s",
        against="plain pyarrow IPC",
        against_figure=num_rows / floor_seconds,
        ratio=floor_seconds / seconds,
        target=TARGET_RATIO,
    )


def example_rollout(num_steps: int, num_lanes: int, mean_episode_steps: float = 200.0, first_env: int = 0) -> Rollout:
    """Random steps of as many single-agent environments as lanes; the ids of environments count from `first_env` on."""
    rng = np.random.default_rng(first_env)
    shape = (num_steps, num_lanes)
    obs = rng.standard_normal((*shape, NUM_OBSERVATIONS), dtype=np.float32)
    terminated = rng.random(shape) < 1.0 / mean_episode_steps
    step, lane = np.nonzero(rows_with_successor(terminated))
    env_ids = tuple(uuid.UUID(int=first_env + i) for i in range(num_lanes))
    observation_space = spaces.Box(-np.inf, np.inf, (NUM_OBSERVATIONS,), np.float32)
    return Rollout(
        header=LaneHeader("agent", env_ids, ("agent",), observation_space, spaces.Discrete(4)),
        obs=obs,
        action=rng.integers(0, 4, shape),
        reward=rng.standard_normal(shape, dtype=np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, dtype=bool),
        valid=np.ones(shape, dtype=bool),
        failed=np.zeros(shape, dtype=bool),
        policy_version=np.full(shape, 7, dtype=np.int64),
        first_episode=np.zeros(num_lanes, dtype=np.int64),
        first_step=np.zeros(num_lanes, dtype=np.int64),
        successors=Successors(step, lane, obs[step, lane]),
        logp=rng.standard_normal(shape, dtype=np.float32),
        value=rng.standard_normal(shape, dtype=np.float32),
    )


def plain_columns(rollout: Rollout) -> dict[str, Array]:
    """The rollout's columns, one row per step and lane."""
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", "failed", "policy_version", "logp", "value")
    columns = {name: getattr(rollout, name) for name in names}
    return {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}


def plain_arrow_round_trip(columns: dict[str, Array], compression: Compression) -> dict[str, Array]:
    """NumPy columns to IPC bytes and back with nothing but pyarrow."""
    batch = pa.RecordBatch.from_pydict({name: _plain_column(column) for name, column in columns.items()})
    sink = pa.BufferOutputStream()
    codec = None if compression is Compression.NONE else compression.value
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        read = reader.read_next_batch()
    return {name: _plain_array(column) for name, column in zip(read.schema.names, read.columns, strict=True)}


def _plain_column(column: Array) -> pa.Array:
    values = pa.array(column.reshape(-1))
    return values if column.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, column.shape[1])


def _plain_array(column: pa.Array) -> Array:
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.flatten().to_numpy().reshape(len(column), -1))
    return np.asarray(column.to_numpy(zero_copy_only=False))
