"""Well-formed Arrow data that breaks a rule of the schema or the data model is refused with that rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hostile_examples import DECODE, decodes_to_something_sound, example

from relayrl.data.arrow.arrow_reading import from_batch
from relayrl.data.arrow.arrow_writing import to_batch
from relayrl.data.arrow.codec import decode_rollout, encode
from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.arrow.rollout_batches import rollout_from_batch, rollout_to_batch
from relayrl.data.arrow.schema import layout_of
from relayrl.data.columns import Rollout, Trajectory
from relayrl.errors import DecodeError


def trajectory_to_batch(*trajectories: Trajectory) -> pa.RecordBatch:
    (block,) = layout_book().blocks(trajectories)
    return to_batch(block)


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def with_metadata(batch: pa.RecordBatch, **change: str | None) -> pa.RecordBatch:
    metadata = {key.decode(): value.decode() for key, value in batch.schema.metadata.items()}
    metadata |= {f"relayrl.{key}": value for key, value in change.items()}
    return batch.replace_schema_metadata({key: value for key, value in metadata.items() if value is not None})


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """The batch with other values in a column of the same type."""
    columns = [column if field.name == name else batch.column(field.name) for field in batch.schema]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def ids(kind: pa.DataType, indices: list[int], names: list[str]) -> pa.Array:
    array = pa.array(indices, type=kind.index_type)
    return pa.DictionaryArray.from_arrays(array, pa.array(names), safe=False)


def bool_like(batch: pa.RecordBatch, *true_rows: int) -> pa.Array:
    return pa.array([row in true_rows for row in range(batch.num_rows)])


BOX = '{"type":"box","dtype":"float32","shape":[%s],"low":0.0,"high":1.0}'
FORGERIES: dict[str, tuple[str, Callable[[pa.RecordBatch], pa.RecordBatch], str]] = {
    "another version": ("rollout", lambda b: with_metadata(b, schema_version="3"), "schema version 3; this program"),
    "no version": ("rollout", lambda b: with_metadata(b, schema_version=None), "no RelayRL data"),
    "no kind": ("rollout", lambda b: with_metadata(b, kind=None), "has no 'relayrl.kind'"),
    "another kind": ("rollout", lambda b: with_metadata(b, kind="video"), "unknown kind of data 'video'"),
    "no space": ("rollout", lambda b: with_metadata(b, action_space=None), "has no 'relayrl.action_space'"),
    "a space that is no JSON": ("rollout", lambda b: with_metadata(b, action_space="{"), "not JSON"),
    "a huge space": ("rollout", lambda b: with_metadata(b, action_space=BOX % "2000000000"), "the columns only 1"),
    "a space of another shape": ("rollout", lambda b: with_metadata(b, observation_space=BOX % "7"), "missing"),
    "a space of another dtype": ("rollout", lambda b: with_metadata(b, action_space=BOX % ""), "column 'action' is"),
    "another group": ("rollout", lambda b: with_metadata(b, group="x"), "'group' differs"),
    "a missing column": ("rollout", lambda b: b.drop_columns(["reward"]), r"missing \['reward'\]"),
    "a surplus column": (
        "rollout",
        lambda b: b.append_column("extra", b.column("reward")),
        r"not expected \['extra'\]",
    ),
    "a column twice": ("rollout", lambda b: b.append_column("reward", b.column("reward")), "the same name"),
    "another order": ("rollout", lambda b: b.select(b.schema.names[::-1]), "in the order"),
    "a column of another type": (
        "rollout",
        lambda b: b.set_column(b.schema.get_field_index("reward"), "reward", b.column("reward").cast(pa.float64())),
        "column 'reward' is .*double",
    ),
    "a mask that is none": (
        "rollout",
        lambda b: b.set_column(b.schema.get_field_index("action_mask"), "action_mask", b.column("valid")),
        "'action_mask' is bool",
    ),
    "half a step": ("rollout", lambda b: b.slice(0, b.num_rows - 2), "22 rows are no whole number of steps of 4 lanes"),
    "no rows": ("rollout", lambda b: b.slice(0, 0), "0 rows are no whole number"),
    "environments out of order": (
        "rollout",
        lambda b: with_column(b, "env_id", ids(b.schema.field("env_id").type, [0, 1] * 12, [str(n) for n in "xy"])),
        "does not run through the environments",
    ),
    "agents out of order": (
        "rollout",
        lambda b: with_column(b, "agent_id", ids(b.schema.field("agent_id").type, [1, 0] * 12, ["a", "b"])),
        "does not run through the agents",
    ),
    "an agent twice": (
        "rollout",
        lambda b: with_column(b, "agent_id", ids(b.schema.field("agent_id").type, [0, 1] * 12, ["a", "a"])),
        "names an agent twice",
    ),
    "an index without name": (
        "rollout",
        lambda b: with_column(b, "agent_id", ids(b.schema.field("agent_id").type, [0, 7] * 12, ["a", "b"])),
        "points outside its 2 names",
    ),
    "an environment that is no UUID": (
        "rollout",
        lambda b: with_column(b, "env_id", ids(b.schema.field("env_id").type, [0, 0, 1, 1] * 6, ["x", "y"])),
        "no UUID",
    ),
    "a UUID in another spelling": (
        "trajectory",
        lambda b: with_column(b, "env_id", ids(b.schema.field("env_id").type, [0] * b.num_rows, ["0" * 32])),
        "not written as UUIDs are",
    ),
    "a failed row that is valid": (
        "rollout",
        lambda b: with_column(b, "failed", bool_like(b, 0)),
        "a row that failed must be truncated and not valid",
    ),
    "a step number off": (
        "rollout",
        lambda b: with_column(b, "step", pa.array([5] * b.num_rows)),
        "do not count on",
    ),
    "an end without final observation": (
        "rollout",
        lambda b: with_column(b, "terminated", bool_like(b)),
        "do not count on|does not have one observation",
    ),
    "a trajectory with a row that is not valid": (
        "trajectory",
        lambda b: with_column(b, "valid", bool_like(b)),
        "not valid",
    ),
    "a trajectory that ends early": (
        "trajectory",
        lambda b: with_column(b, "terminated", bool_like(b, 0)),
        "ends before its last row",
    ),
    "a trajectory that failed but is not truncated": (
        "trajectory",
        lambda b: with_column(with_column(b, "failed", bool_like(b, b.num_rows - 1)), "truncated", bool_like(b)),
        "failed without being truncated",
    ),
    "a trajectory over two episodes": (
        "trajectory",
        lambda b: with_column(b, "episode", pa.array(range(b.num_rows))),
        "'episode' changes within a trajectory",
    ),
    "a trajectory before its episode": (
        "trajectory",
        lambda b: with_column(b, "step", pa.array(range(-3, b.num_rows - 3))),
        "count from 0 on",
    ),
    "a trajectory of two environments": (
        "trajectory",
        lambda b: with_column(
            b, "env_id", ids(b.schema.field("env_id").type, [0] * (b.num_rows - 1) + [1], ["0" * 8, "1" * 8])
        ),
        "'env_id' changes within a trajectory",
    ),
    "a trajectory without rows": ("trajectory", lambda b: b.slice(0, 0), "without steps"),
    "a trajectory without final observation": (
        "trajectory",
        lambda b: b.slice(0, b.num_rows - 1),
        "'successor' does not",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_well_formed_arrow_that_breaks_a_rule_is_refused_with_the_rule(name: str) -> None:
    kind, forge, reason = FORGERIES[name]
    steps = example(kind)
    batch = rollout_to_batch(steps) if isinstance(steps, Rollout) else trajectory_to_batch(steps)
    assert decodes_to_something_sound(kind, stream(batch))
    forged = forge(batch)
    with pytest.raises(DecodeError, match=reason):
        DECODE[kind](stream(forged))


def test_nulls_are_refused() -> None:
    batch = rollout_to_batch(example("rollout"))  # type: ignore[arg-type]
    rewards = batch.column("reward").to_pylist()
    nulls = with_column(batch, "reward", pa.array([None, *rewards[1:]], type=pa.float32()))
    with pytest.raises(DecodeError, match="'reward' has 1 nulls"):
        rollout_from_batch(nulls, layout_of(batch.schema))


def test_a_slice_of_a_table_of_trajectories_is_read() -> None:
    rollout = example("rollout")
    assert isinstance(rollout, Rollout)
    trajectories = list(rollout.trajectories())
    table = pa.Table.from_batches([trajectory_to_batch(t) for t in trajectories]).unify_dictionaries().combine_chunks()
    (batch,) = table.to_batches()
    begin = 0
    for trajectory in trajectories:
        (read,) = from_batch(batch.slice(begin, len(trajectory)), layout_of(batch.schema))
        assert bytes(encode(read)) == bytes(encode(trajectory))
        begin += len(trajectory)
    assert begin == batch.num_rows


@pytest.mark.parametrize(
    ("offsets", "child"), [([0] * 23 + [1, 9], 1), ([0] * 24 + [-1], 1), ([5] * 25, 1), ([0, 9] + [1] * 23, 4)]
)
def test_list_offsets_out_of_range_are_refused(offsets: list[int], child: int) -> None:
    batch = rollout_to_batch(example("rollout"))  # type: ignore[arg-type]
    kind = batch.schema.field("successor").type
    values = batch.column("successor").values.slice(0, child)
    buffer = pa.py_buffer(np.array(offsets, np.int32))
    try:
        forged = pa.Array.from_buffers(kind, 24, [None, buffer], children=[values])
    except pa.ArrowInvalid:
        forged = None
    if forged is not None:
        with pytest.raises(DecodeError):
            rollout_from_batch(with_column(batch, "successor", forged), layout_of(batch.schema))
    right = np.frombuffer(batch.column("successor").buffers()[1], np.int32)[:25].tobytes()
    data = bytes(encode(example("rollout")))
    assert data.count(right) == 1
    with pytest.raises(DecodeError):
        decode_rollout(data.replace(right, np.array(offsets, np.int32).tobytes()))
