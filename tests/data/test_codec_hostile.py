"""Bytes that are cut off, damaged or forged: always a `DecodeError`, never a crash, never the memory they ask for."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hostile_examples import DECODE, KINDS, MAX_BYTES, decodes_to_something_sound, example

from relayrl.bench.codec_rows import example_rollout
from relayrl.data.arrow.codec import Compression, decode_rollout, encode
from relayrl.data.arrow.ipc_limits import read_claims
from relayrl.errors import DecodeError


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("kind", KINDS)
def test_cut_off_bytes_are_refused_at_every_length(kind: str, compression: Compression) -> None:
    data = bytes(encode(example(kind), compression))
    assert decodes_to_something_sound(kind, data)
    for length in range(0, len(data), 3):
        with pytest.raises(DecodeError):
            DECODE[kind](data[:length], max_bytes=MAX_BYTES)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_are_refused_or_harmless(kind: str, compression: Compression) -> None:
    data = np.frombuffer(encode(example(kind), compression), np.uint8)
    rng = np.random.default_rng(0)
    accepted = 0
    for _ in range(1500):
        damaged = data.copy()
        where = rng.integers(0, len(data), rng.integers(1, 4))
        damaged[where] = np.where(rng.random(len(where)) < 0.5, rng.integers(0, 256, len(where)), damaged[where] ^ 1)
        accepted += decodes_to_something_sound(kind, damaged.tobytes())
    assert 0 < accepted < 1200


@pytest.mark.parametrize("kind", KINDS)
def test_forged_words_in_the_metadata_are_refused_or_harmless(kind: str) -> None:
    data = bytes(encode(example(kind), Compression.LZ4))
    refused = 0
    for position in range(0, len(data) - 4, 4):
        for word in (2**31 - 1, -1) if position % 8 else (0, 2**20):
            forged = bytearray(data)
            struct.pack_into("<i", forged, position, word)
            refused += not decodes_to_something_sound(kind, bytes(forged))
    assert refused > 1500


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff" * 8, b"hello environment, this is no Arrow", b"\0" * 4096, b"\xff" * 4096]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_rollout(data)


def frames(data: bytes) -> list[bytes]:
    """The stream's messages, the mark of its end included."""
    found, position = [], 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(data)):
        length = len(message.serialize())
        found.append(data[position : position + length])
        position += length
    return [*found, data[position:]]


def test_only_one_schema_its_dictionaries_and_one_batch_are_let_through() -> None:
    schema, *dictionaries, batch, end = frames(bytes(encode(example("rollout"))))
    whole = [schema, *dictionaries, batch, end]
    assert decodes_to_something_sound("rollout", b"".join(whole))
    wrong = {
        "two schemas": [schema, *whole],
        "no schema": whole[1:],
        "two batches": [schema, *dictionaries, batch, batch, end],
        "no batch": [schema, *dictionaries, end],
        "a dictionary too few": [schema, *dictionaries[1:], batch, end],
        "a dictionary too many": [schema, *dictionaries, *dictionaries, batch, end],
        "a batch before its dictionaries": [schema, batch, *dictionaries, end],
        "no end": whole[:-1],
        "bytes after the end": [*whole, b"\0" * 8],
    }
    for name, messages in wrong.items():
        assert not decodes_to_something_sound("rollout", b"".join(messages)), name


def test_columns_that_share_a_buffer_are_refused() -> None:
    data = bytes(encode(example_rollout(50, 2)))
    batch = frames(data)[-2]
    head = 8 + struct.unpack_from("<i", batch, 4)[0]
    body = pa.ipc.read_message(pa.py_buffer(batch)).body.to_pybytes()
    logp, value = (
        body.index(column.tobytes()) for column in (example_rollout(50, 2).logp, example_rollout(50, 2).value)
    )
    forged = batch[:head].replace(struct.pack("<qq", value, 400), struct.pack("<qq", logp, 400))
    assert forged != batch[:head]
    with pytest.raises(DecodeError, match="buffer lies outside"):
        decode_rollout(data.replace(batch[:head], forged))


def test_schema_tables_that_are_shared_to_multiply_their_cost_are_refused() -> None:
    long = spaces.Dict([("k" * 3000, spaces.Discrete(2)), *((f"short{i}", spaces.Discrete(2)) for i in range(40))])
    rollout = example_rollout(1, 1)
    header = dataclasses.replace(rollout.header, observation_space=long)
    obs = {key: np.zeros((1, 1), np.int64) for key in long.spaces}
    final = dataclasses.replace(rollout.successors, obs={key: np.zeros(1, np.int64) for key in long.spaces})
    data = bytearray(encode(dataclasses.replace(rollout, header=header, obs=obs, successors=final)))
    claims = read_claims(memoryview(data))
    names = pa.ipc.read_schema(pa.py_buffer(claims.schema)).names
    # the vector of fields: its length, then one offset per field, each relative to where it stands
    starts = [at for at in range(0, len(claims.schema) - 4, 4) if struct.unpack_from("<I", data, at)[0] == len(names)]
    vector = next(at for at in starts if _points_to_fields(data, at, len(names)))
    target = vector + 4 + 4 * 6 + struct.unpack_from("<I", data, vector + 4 + 4 * 6)[0]
    for i in range(len(names)):
        at = vector + 4 + 4 * i
        if target > at:
            struct.pack_into("<I", data, at, target - at)
    with pytest.raises(DecodeError, match="the same tables more than once"):
        decode_rollout(bytes(data))


def _points_to_fields(data: bytearray, vector: int, count: int) -> bool:
    offsets = struct.unpack_from(f"<{count}I", data, vector + 4)
    return all(0 < offset < len(data) for offset in offsets) and len(set(offsets)) > count // 2


FORGED_LENGTH = """
import struct, sys
import numpy as np, pyarrow as pa
from relayrl.bench.codec_rows import example_rollout
from relayrl.data.arrow.codec import Compression, decode_rollout, encode
from relayrl.errors import DecodeError

num_bytes = 300 * 3 * 8 * 4
data = bytes(encode(example_rollout(300, 3), Compression[sys.argv[1]]))
assert data.count(struct.pack("<q", num_bytes)) == 1
forged = data.replace(struct.pack("<q", num_bytes), struct.pack("<q", 1 << 30))
pool = pa.default_memory_pool()
for max_bytes in (64 << 20, len(data)):
    try:
        decode_rollout(forged, max_bytes=max_bytes)
    except DecodeError as error:
        print(error)
print("peak", pool.max_memory())
try:
    pa.ipc.open_stream(forged).read_next_batch()
except pa.ArrowException as error:
    pass
except OSError as error:
    pass
print("peak without limits", pool.max_memory())
"""


@pytest.mark.parametrize("compression", ["LZ4", "ZSTD"])
def test_a_forged_uncompressed_length_is_not_allocated(compression: str) -> None:
    command = [sys.executable, "-c", FORGED_LENGTH, compression]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert len(lines) == 4
    assert "more than the limit of 67108864" in lines[0]
    assert "more than the limit of" in lines[1]
    assert int(lines[2].removeprefix("peak ")) < 2 << 20
    assert int(lines[3].removeprefix("peak without limits ")) >= 1 << 30


@pytest.mark.parametrize("num_rows", [-1, 25, 2**31, 2**40, 2**62])
@pytest.mark.parametrize("compression", Compression)
def test_a_forged_number_of_rows_is_refused_without_allocating(compression: Compression, num_rows: int) -> None:
    data = bytes(encode(example("rollout"), compression))
    batch = frames(data)[-2]
    head = 8 + struct.unpack_from("<i", batch, 4)[0]
    forged_head = batch[:head].replace(struct.pack("<q", 24), struct.pack("<q", num_rows))
    assert forged_head != batch[:head]
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DecodeError):
        decode_rollout(data.replace(batch[:head], forged_head), max_bytes=MAX_BYTES)
    assert pa.default_memory_pool().max_memory() <= max(before, 4 * MAX_BYTES)
