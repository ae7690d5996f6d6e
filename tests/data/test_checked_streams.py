"""Streams that are checked without being decoded: whatever passes is what decoding and its checks let pass."""

import struct
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from relayrl import open_sink, open_source
from relayrl.compiled import loader
from relayrl.data.arrow.arrow_writing import to_batch
from relayrl.data.arrow.checked_streams import StreamPlans
from relayrl.data.arrow.codec import Compression, decode_block, encode_block
from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.columns import Trajectory
from relayrl.data.trees import map_tree
from relayrl.errors import ConfigError, DecodeError
from relayrl.sinks.buffered import checked_blocks
from relayrl.testing.trajectory_examples import difference, random_values
from relayrl.training.facade.received_trajectories import require_learnable

pytestmark = pytest.mark.skipif(loader.kernels() is None, reason="needs the compiled kernels")

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
NESTED = spaces.Dict(
    camera=spaces.Box(0, 255, (2, 2), np.uint8),
    far=spaces.Box(-1.0, 1.0, (), np.float64),
    kinds=spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2), spaces.Box(0, 1, (2,), bool)]),
)
LAYOUTS = {
    "plain": (BOX, spaces.Discrete(4), {}),
    "nested": (NESTED, BOX, {"logp": True, "value": True}),
    "numbered": (BOX, spaces.MultiDiscrete([3, 3]), {"end_step": True, "logp": True}),
}


def finite(space, leading, rng):
    values = random_values(rng, space, leading)

    def fill(leaf):
        return rng.normal(size=leaf.shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf

    return map_tree(fill, values)


def trajectory(kind, rng, num_steps, k=0):
    seen, done, options = LAYOUTS[kind]
    first = int(rng.integers(0, 50))
    return Trajectory(
        trajectory_id=UUID(bytes=rng.bytes(16)),
        env_id=UUID(int=k % 3),
        agent_id=f"agent{k % 2}",
        group="agent",
        observation_space=seen,
        action_space=done,
        episode=int(rng.integers(0, 9)),
        first_step=first,
        obs=finite(seen, (num_steps,), rng),
        action=finite(done, (num_steps,), rng),
        reward=rng.normal(size=num_steps).astype(np.float32),
        policy_version=rng.integers(0, 7, num_steps),
        terminated=k % 3 == 0,
        truncated=k % 3 == 1,
        failed=k % 6 == 1,
        final_obs=finite(seen, (), rng),
        **{name: rng.normal(size=num_steps).astype(np.float32) for name in ("logp", "value") if name in options},
        **({"end_step": first + num_steps + 1 + k % 2} if "end_step" in options else {}),
    )


def block_of(kind, lengths, seed=0):
    rng = np.random.default_rng(seed)
    (block,) = layout_book().blocks([trajectory(kind, rng, length, k) for k, length in enumerate(lengths)])
    return block


def stream(block):
    return bytes(encode_block(block))


def planned(kind):
    plans = StreamPlans()
    plans.add(block_of(kind, [4, 2]))
    return plans


def passes_every_check(data):
    try:
        block = decode_block(data)
        require_learnable(block)
        checked_blocks(block)
    except (ConfigError, DecodeError):
        return None
    return block


@pytest.mark.parametrize("lengths", [[1], [7], [3, 1, 9, 8, 2], [400, 30]])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_what_our_arrow_writes_is_checked_and_described(kind, lengths):
    block = block_of(kind, lengths, seed=len(lengths))
    found = planned(kind).check(stream(block))
    assert found is not None
    assert found.trajectory_ids == block.trajectory_ids
    assert (found.num_rows, len(found)) == (sum(lengths), len(lengths))
    assert found.newest_version == max(int(t.policy_version.max()) for t in block)
    assert [difference(one, other) for one, other in zip(found.block(), block, strict=True)] == [None] * len(lengths)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_stream_is_read_where_it_lies_and_copied_where_numbers_do_not_lie_right(kind):
    block = block_of(kind, [3, 5])
    data = bytearray(stream(block))
    within = bytearray(8 + len(data))
    for shift in (0, 3):
        view = memoryview(within)[shift : shift + len(data)]
        view[:] = data
        found = planned(kind).check(view).block()
        assert all(difference(one, other) is None for one, other in zip(found, block, strict=True))
        assert all(array.flags.aligned and not array.flags.writeable for array in (*found.arrays, *found.finals))
        first = np.frombuffer(view, np.uint8)
        assert np.shares_memory(found.arrays[0], first) is (shift == 0)


def test_unknown_layouts_masks_half_floats_and_compressed_streams_have_to_be_decoded():
    plans = planned("plain")
    assert plans.check(stream(block_of("nested", [3]))) is None
    assert plans.check(bytes(encode_block(block_of("plain", [3]), Compression.LZ4))) is None
    for data in (b"", b"\xff" * 8, b"\xff\xff\xff\xff\0\0\0\x7f" + bytes(64)):
        assert plans.check(data) is None


@pytest.mark.parametrize("kind", LAYOUTS)
def test_whatever_passes_among_damaged_streams_passes_every_check_and_is_stored_readably(kind, tmp_path):
    """Bytes, and words of the metadata, at random."""
    rng, plans = np.random.default_rng(7), planned(kind)
    data = np.frombuffer(stream(block_of(kind, [5, 1, 6], seed=3)), np.uint8)
    num_schema_bytes = len(block_of(kind, [1]).layout.fingerprint)
    num_passed, num_harmed = 0, 3_000
    with open_sink(f"arrow:{tmp_path}") as sink:
        for _ in range(num_harmed):
            damaged = data.copy()
            where = rng.integers(num_schema_bytes, len(data), rng.integers(1, 3))
            damaged[where] = np.where(rng.random(len(where)) < 0.5, rng.integers(0, 256), damaged[where] ^ 1)
            if rng.random() < 0.5:
                word = int(rng.choice([0, 1, -1, 3, 12, 13, 36, 2**31, 2**62, 2**63 - 1, -(2**63)]))
                struct.pack_into("<q", damaged, int(rng.integers(num_schema_bytes, len(data) - 8)) // 8 * 8, word)
            found = plans.check(damaged.tobytes())
            if found is None:
                continue
            num_passed += 1
            block = passes_every_check(damaged.tobytes())
            assert block is not None
            assert (block.trajectory_ids, block.num_rows) == (found.trajectory_ids, found.num_rows)
            assert found.newest_version == max(int(t.policy_version.max()) for t in block)
            assert all(difference(one, other) is None for one, other in zip(found.block(), block, strict=True))
            sink.write_stream(found)
    assert 50 < num_passed < num_harmed - 1_000
    with open_source(f"arrow:{tmp_path}") as source:
        assert source.count().num_trajectories >= 3
        assert len(list(source)) == source.count().num_trajectories


def test_what_is_too_long_when_it_is_decoded_does_not_pass():
    block = block_of("plain", [30])
    for max_bytes, passes in ((1 << 20, True), (30 * 50, False)):
        plans = StreamPlans(max_bytes)
        plans.add(block)
        assert (plans.check(stream(block)) is not None) is passes


@pytest.mark.parametrize("length", range(0, 4_000, 61))
def test_a_stream_that_is_cut_off_does_not_pass(length):
    data = stream(block_of("plain", [5, 9]))
    assert planned("plain").check(data[: min(length, len(data) - 1)]) is None
    assert planned("plain").check(data + bytes(8)) is None


def forged(column, change):
    """A stream with another column, as a client that has Arrow could send it."""
    batch = to_batch(block_of("numbered", [4, 3]))
    values = batch.column(column).to_pylist()
    change(values)
    given = pa.array(values, batch.schema.field(column).type)
    batch = batch.set_column(batch.schema.get_field_index(column), batch.schema.field(column), given)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def put(row, value):
    return lambda values: values.__setitem__(row, value)


FORGERIES = {
    "nothing": ("reward", put(0, 2.0)),
    "nan": ("reward", put(2, float("nan"))),
    "infinite": ("logp", put(6, float("inf"))),
    "no such action": ("action", put(1, [0, 3])),
    "negative action": ("action", put(1, [-1, 0])),
    "nan in an observation": ("obs", put(3, [0.0, float("nan"), 0.0])),
    "early end": ("terminated", put(1, True)),
    "early truncation": ("truncated", put(4, True)),
    "failed, not truncated": ("failed", put(3, True)),
    "invalid row": ("valid", put(5, False)),
    "another episode": ("episode", put(2, 77)),
    "negative episode": ("episode", lambda values: values.__setitem__(slice(0, 4), [-1] * 4)),
    "step back": ("step", put(2, 0)),
    "step too far": ("step", put(3, 2**62)),
    "another agent inside": ("agent_id", put(1, "agent1")),
    "another environment inside": ("env_id", put(1, str(uuid4()))),
    "no uuid": ("env_id", lambda values: values.__setitem__(slice(0, 4), ["x" * 36] * 4)),
    "an id that comes back": ("trajectory_id", lambda values: values.__setitem__(6, values[0])),
    "another group": ("group", put(0, "others")),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_breaks_a_rule_does_not_pass(name):
    data = forged(*FORGERIES[name])
    assert (planned("numbered").check(data) is not None) is (name == "nothing")
    assert (passes_every_check(data) is not None) is (name == "nothing")


@pytest.mark.parametrize("scheme", ["arrow", "parquet", "csv", "sqlite", "memory"])
def test_every_sink_takes_streams_beside_blocks_and_stores_each_trajectory_once(scheme, tmp_path):
    url = f"{scheme}:{tmp_path / 'stored'}"
    blocks = [block_of("nested", [3, 2], seed) for seed in range(4)]
    plans = planned("nested")
    with open_sink(url) as sink:
        for block in (blocks[0], blocks[1], blocks[0]):
            sink.write_stream(plans.check(stream(block)))
        sink.write(blocks[2])
        sink.flush()
        sink.write_stream(plans.check(stream(blocks[3])))
    with open_source(url) as source:
        found = {t.trajectory_id: t for t in source}
    expected = [t for block in blocks for t in block]
    assert len(found) == len(expected)
    assert all(difference(found[t.trajectory_id], t) is None for t in expected)


def test_an_arrow_sink_stores_the_bytes_that_came(tmp_path):
    data, plans = stream(block_of("plain", [30])), planned("plain")
    with open_sink(f"arrow:{tmp_path}") as sink:
        sink.write_stream(plans.check(data))
        sink.flush()
        (part,) = tmp_path.glob("part-*.arrows")
        assert part.read_bytes() == data[:-8]
    assert part.read_bytes() == data
