"""Trajectories and rollouts come back from bytes bit for bit, without copies where nothing is compressed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from data_strategies import arrays_of, differences, examples, rollouts, trajectories
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from relayrl.bench.codec_rows import example_rollout, plain_arrow_round_trip, plain_columns
from relayrl.data.arrow.codec import Compression, decode_rollout, decode_trajectory, encode
from relayrl.data.arrow.schema import layout_of, space_columns
from relayrl.data.columns import Rollout, Trajectory
from relayrl.errors import ConfigError, DecodeError

compressions = st.sampled_from(Compression)


@examples(150)
@given(rollouts(), compressions)
def test_rollouts_come_back_bit_for_bit(rollout: Rollout, compression: Compression) -> None:
    decoded = decode_rollout(encode(rollout, compression))
    assert differences(decoded, rollout) == []


@examples(150)
@given(trajectories(), compressions)
def test_trajectories_come_back_bit_for_bit(trajectory: Trajectory, compression: Compression) -> None:
    decoded = decode_trajectory(encode(trajectory, compression))
    assert differences(decoded, trajectory) == []


@examples(60)
@given(rollouts())
def test_every_trajectory_of_a_rollout_can_be_sent(rollout: Rollout) -> None:
    for trajectory in rollout.trajectories():
        assert differences(decode_trajectory(encode(trajectory)), trajectory) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_all_kinds_of_bytes_are_taken(kind: type) -> None:
    rollout = example_rollout(5, 2)
    assert differences(decode_rollout(kind(encode(rollout).to_pybytes())), rollout) == []


@pytest.mark.parametrize("offset", [1, 3, 4, 8])
def test_a_part_of_a_larger_message_is_decoded_wherever_it_lies(offset: int) -> None:
    rollout = example_rollout(5, 2)
    message = b"x" * offset + bytes(encode(rollout))
    decoded = decode_rollout(memoryview(message)[offset:])
    assert differences(decoded, rollout) == []
    assert all(array.flags.aligned for array in arrays_of(decoded).values())


def test_uncompressed_columns_are_views_of_the_bytes_and_read_only() -> None:
    data = bytes(encode(example_rollout(50, 4)))
    whole = np.frombuffer(data, np.uint8)
    decoded = decode_rollout(data)
    shared = {name for name, array in arrays_of(decoded).items() if np.shares_memory(whole, array)}
    assert shared == {
        "obs.",
        "action.",
        "reward.",
        "policy_version.",
        "first_episode.",
        "first_step.",
        "successors.",
        "logp.",
        "value.",
    }
    columns = {name: array for name, array in arrays_of(decoded).items() if not name.startswith("successors.")}
    assert not any(array.flags.writeable for array in columns.values())


def test_decoded_columns_outlive_the_bytes() -> None:
    rollout = example_rollout(50, 4)
    decoded = decode_rollout(bytearray(bytes(encode(rollout))))
    np.random.default_rng(0).bytes(100_000)
    assert differences(decoded, rollout) == []


def test_encoding_leaves_the_rollout_as_it_is() -> None:
    rollout = example_rollout(50, 4)
    before = {name: array.copy() for name, array in arrays_of(rollout).items()}
    encode(rollout, Compression.ZSTD)
    assert {name: array.tobytes() for name, array in arrays_of(rollout).items()} == {
        name: array.tobytes() for name, array in before.items()
    }


def test_equal_rollouts_give_equal_bytes() -> None:
    assert bytes(encode(example_rollout(20, 3))) == bytes(encode(example_rollout(20, 3)))


def test_strided_columns_are_encoded_by_their_values() -> None:
    rollout = example_rollout(20, 3)
    strided = dataclasses.replace(
        rollout, obs=np.asfortranarray(rollout.obs), reward=rollout.reward[::1, ::1].copy("F")
    )
    assert differences(decode_rollout(encode(strided)), rollout) == []


def test_compression_makes_repetitive_data_smaller() -> None:
    rollout = example_rollout(500, 8)
    plain, fast, small = (encode(rollout, compression).size for compression in Compression)
    assert small < fast < 0.75 * plain


@pytest.mark.parametrize("compression", Compression)
def test_the_floor_of_the_benchmark_brings_the_same_columns_back(compression: Compression) -> None:
    columns = plain_columns(example_rollout(30, 4))
    assert differences(plain_arrow_round_trip(columns, compression), columns) == []


def test_the_kind_of_data_is_checked() -> None:
    rollout = example_rollout(5, 2)
    trajectory = rollout.trajectories()[0]
    with pytest.raises(DecodeError, match="this is a rollout, not a trajectory"):
        decode_trajectory(encode(rollout))
    with pytest.raises(DecodeError, match="this is a trajectory, not a rollout"):
        decode_rollout(encode(trajectory))


def test_the_limit_counts_bytes_before_and_after_decompression() -> None:
    rollout = dataclasses.replace(example_rollout(1000, 4), obs=np.zeros((1000, 4, 8), np.float32))
    data = encode(rollout, Compression.ZSTD)
    assert data.size < 150_000
    with pytest.raises(DecodeError, match=f"{data.size} bytes, more than the limit of 1000"):
        decode_rollout(data, max_bytes=1000)
    with pytest.raises(DecodeError, match=r"claims \d+ bytes uncompressed and 4000 rows"):
        decode_rollout(data, max_bytes=250_000)
    assert decode_rollout(data, max_bytes=500_000).num_steps == 1000


def test_messages_of_one_environment_share_their_spaces() -> None:
    first, second = (decode_rollout(encode(example_rollout(5, 2))) for _ in range(2))
    assert first.header.observation_space is second.header.observation_space


def test_plain_pyarrow_understands_the_rows() -> None:
    space = spaces.Dict({"camera": spaces.Tuple([spaces.Box(0, 255, (2, 3), np.uint8)]), "a.b": spaces.Discrete(3)})
    rollout = example_rollout(4, 2)
    obs = {"a.b": np.arange(8).reshape(4, 2), "camera": (np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3),)}
    header = dataclasses.replace(rollout.header, observation_space=space)
    step, lane = rollout.successors.step, rollout.successors.lane
    final = {"a.b": obs["a.b"][step, lane], "camera": (obs["camera"][0][step, lane],)}
    successors = dataclasses.replace(rollout.successors, obs=final)
    table = pa.ipc.open_stream(
        encode(dataclasses.replace(rollout, header=header, obs=obs, successors=successors))
    ).read_all()
    assert table.column_names == [
        "env_id",
        "agent_id",
        "group",
        "episode",
        "step",
        "policy_version",
        "obs.a%2Eb",
        "obs.camera.0",
        "action",
        "reward",
        "terminated",
        "truncated",
        "failed",
        "valid",
        "logp",
        "value",
        "successor",
    ]
    row = table.slice(3, 1).to_pylist()[0]
    assert row["env_id"] == "00000000-0000-0000-0000-000000000001"
    assert (row["agent_id"], row["group"], row["episode"], row["step"]) == ("agent", "agent", 0, 1)
    assert (row["obs.a%2Eb"], row["obs.camera.0"]) == (3, list(range(18, 24)))
    assert row["reward"] == rollout.reward[1, 1]
    assert row["successor"] == []
    last = table.slice(7, 1).to_pylist()[0]
    assert last["successor"] == [{"obs.a%2Eb": 7, "obs.camera.0": list(range(42, 48))}]
    assert table.schema.metadata[b"relayrl.schema_version"] == b"2"
    assert layout_of(table.schema).observation_space == space


def test_keys_with_dots_and_percent_signs_have_columns_of_their_own() -> None:
    space = spaces.Dict({key: spaces.Discrete(2) for key in ("a.b", "a%2Eb", "a%252Eb", "a")})
    assert [leaf.name for leaf in space_columns("obs", space)] == ["obs.a", "obs.a%25252Eb", "obs.a%252Eb", "obs.a%2Eb"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward": np.zeros((5, 2))}, "'reward' is float64"),
        ({"reward": np.zeros((5, 3), np.float32)}, "5 steps and 3 lanes under a header of 2"),
        ({"reward": np.zeros((0, 2), np.float32)}, "0 steps"),
        ({"obs": np.zeros((5, 2, 7), np.float32)}, r"'obs' is float32 \[5, 2, 7\], expected float32 \[5, 2, 8\]"),
        ({"obs": {"a": np.zeros((5, 2, 8), np.float32)}}, "'obs' should be one array"),
        ({"action": [1, 2]}, "'action' is a list; copy it to a NumPy array"),
        ({"failed": np.ones((5, 2), bool)}, "must be truncated and not valid"),
        ({"truncated": np.ones((5, 2), bool)}, "successors must be the rows"),
        ({"first_step": np.array([0, -1])}, "'first_step' must be 2 int64 numbers from 0 on"),
        ({"first_episode": np.zeros(3, np.int64)}, "'first_episode' must be 2 int64"),
        ({"memory": np.zeros((5, 2, 1), np.complex64)}, "cannot be stored"),
    ],
)
def test_columns_that_do_not_fit_are_refused(change: dict[str, object], reason: str) -> None:
    rollout = dataclasses.replace(example_rollout(5, 2, mean_episode_steps=1e9), **change)
    with pytest.raises(ConfigError, match=reason):
        encode(rollout)


def test_trajectories_that_do_not_fit_are_refused() -> None:
    trajectory = example_rollout(5, 2).trajectories()[0]
    empty = dataclasses.replace(trajectory, reward=trajectory.reward[:0])
    with pytest.raises(ConfigError, match="has no steps"):
        encode(empty)
    with pytest.raises(ConfigError, match="must be truncated"):
        encode(dataclasses.replace(trajectory, failed=True))
    with pytest.raises(ConfigError, match="a number of an episode or step that is negative"):
        encode(dataclasses.replace(trajectory, first_step=-1))
    nested = dataclasses.replace(trajectory, observation_space=spaces.Tuple([spaces.Discrete(2)]))
    with pytest.raises(ConfigError, match="'obs' should be a tuple of 1, it is one ndarray"):
        encode(nested)
    other = dataclasses.replace(trajectory, observation_space=spaces.Dict({"a": spaces.Discrete(2)}))
    with pytest.raises(ConfigError, match=r"'obs' should be a dict with keys \['a'\]"):
        encode(other)
