"""Trajectories, blocks of them and rollouts as bytes: an Arrow IPC stream of one record batch in the schema of `schema`.

    data = encode(trajectory, Compression.ZSTD)
    trajectory = decode_trajectory(data, max_bytes=64 << 20)
    block = decode_block(encode_block(block))                    # many trajectories of one schema

Every value comes back bit for bit, NaN payloads included. Any Arrow program can read the bytes (`pyarrow.ipc.open_stream`).

Decoded arrays are read-only, and without compression all but booleans are views of `data`, which they keep alive. Spaces of
messages with the same schema may be the same objects.

Bytes from strangers are safe to decode: whatever is wrong with them is a `DecodeError` that says what, and no more memory is
taken than a small multiple of `max_bytes`, whatever lengths the bytes claim. No pickle, no code, no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from relayrl.config.enum_members import member_of
from relayrl.data.arrow.arrow_reading import from_own_batch
from relayrl.data.arrow.arrow_writing import to_batch
from relayrl.data.arrow.ipc_limits import check_schema, read_claims
from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.arrow.rollout_batches import rollout_from_batch, rollout_to_batch
from relayrl.data.arrow.schema import Kind, Layout, layout_of, row_width_bytes
from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.errors import DecodeError

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
DEFAULT_MAX_BYTES = 1 << 30
_ALIGNMENT = 8  # of numbers in NumPy and Arrow; the part of a larger message that holds this one may lie anywhere
_SMALL_BYTES = 1 << 16
"""Up to here, memory that grows while it is written costs less than writing twice, the first time for the size."""
_MAX_CACHED_ROW_BYTES = 1 << 18
_MAX_CACHED_SCHEMA_BYTES = 1 << 16


class Compression(Enum):
    """Arrow's own compression of column buffers: none, fast, or small."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def encode(steps: Trajectory | Rollout, compression: Compression | str = Compression.NONE) -> pa.Buffer:
    """The bytes of a trajectory or rollout, as a buffer that `memoryview` and `bytes` take.

    `compression` is `none`, `lz4` or `zstd`. `ConfigError` if columns and spaces do not fit each other.
    """
    compression = member_of(Compression, compression, "compression")
    return _encoded(rollout_to_batch(steps) if isinstance(steps, Rollout) else _to_batch([steps]), compression)


def encode_block(block: TrajectoryBlock, compression: Compression | str = Compression.NONE) -> pa.Buffer:
    """The bytes of all trajectories of a block, which share a schema."""
    return _encoded(to_batch(block), member_of(Compression, compression, "compression"))


def _encoded(batch: pa.RecordBatch, compression: Compression) -> pa.Buffer:
    if compression is not Compression.NONE or batch.nbytes <= _SMALL_BYTES:
        sink = pa.BufferOutputStream()
        _write(sink, batch, compression)
        return sink.getvalue()
    counter = pa.MockOutputStream()
    _write(counter, batch, compression)
    buffer = pa.allocate_buffer(counter.size())
    with pa.FixedSizeBufferWriter(buffer) as sink:
        _write(sink, batch, compression)
    return buffer


def decode_trajectory(data: Bytes, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Trajectory:
    """The trajectory in `data`; neither it nor what it decodes to may be longer than `max_bytes`."""
    block = decode_block(data, max_bytes=max_bytes)
    if len(block) != 1:
        raise DecodeError(f"{len(block)} trajectories, expected one: column 'trajectory_id' holds more than one name")
    return block[0]


def decode_block(data: Bytes, *, max_bytes: int = DEFAULT_MAX_BYTES) -> TrajectoryBlock:
    """All trajectories in `data`, as `encode_block` or `encode` of one wrote them; bounds are those of `decode_trajectory`."""
    batch, layout = _read(data, max_bytes, Kind.TRAJECTORY)
    if not batch.num_rows:
        raise DecodeError("a trajectory without steps")
    return from_own_batch(batch, layout)


def decode_rollout(data: Bytes, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Rollout:
    """The rollout in `data`; neither it nor what it decodes to may be longer than `max_bytes`."""
    return rollout_from_batch(*_read(data, max_bytes, Kind.ROLLOUT))


def _to_batch(trajectories: Sequence[Trajectory]) -> pa.RecordBatch:
    """Of one layout."""
    (block,) = layout_book().blocks(trajectories)
    return to_batch(block)


def _write(sink: pa.NativeFile, batch: pa.RecordBatch, compression: Compression) -> None:
    codec = None if compression is Compression.NONE else compression.value
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def _read(data: Bytes, max_bytes: int, kind: Kind) -> tuple[pa.RecordBatch, Layout]:
    buffer = pa.py_buffer(data)
    if buffer.size > max_bytes:
        raise DecodeError(f"{buffer.size} bytes, more than the limit of {max_bytes}")
    if buffer.size and buffer.address % _ALIGNMENT:
        buffer = pa.py_buffer(bytes(data))
    claims = read_claims(memoryview(buffer))
    is_small = len(claims.schema) <= _MAX_CACHED_SCHEMA_BYTES
    schema, row_bytes = (_cached_schema if is_small else _schema)(claims.schema)
    if not 0 <= max(claims.num_bytes, claims.num_rows * row_bytes) <= max_bytes:
        raise DecodeError(
            f"the data claims {claims.num_bytes} bytes uncompressed and {claims.num_rows} rows of {row_bytes} bytes, "
            f"more than the limit of {max_bytes}"
        )
    try:
        with pa.ipc.open_stream(buffer) as reader:
            batch = reader.read_next_batch()
        batch.validate()
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise DecodeError(f"Arrow cannot read the data: {error}") from error
    is_small &= row_bytes <= _MAX_CACHED_ROW_BYTES
    layout = _cached_layout(claims.schema) if is_small else layout_of(schema)
    if layout.kind is not kind:
        raise DecodeError(f"this is a {layout.kind.value}, not a {kind.value}")
    return batch, layout


def _schema(message: bytes) -> tuple[pa.Schema, int]:
    """The schema of a message that begins with one, and the bytes of a row."""
    check_schema(message)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
        return schema, row_width_bytes(schema)
    except (pa.ArrowException, OSError) as error:
        raise DecodeError(f"Arrow cannot read the schema: {error}") from error


# All messages of one group of agents begin with the same schema.
_cached_schema = lru_cache(maxsize=32)(_schema)


@lru_cache(maxsize=32)
def _cached_layout(schema_message: bytes) -> Layout:
    return layout_of(_cached_schema(schema_message)[0])
