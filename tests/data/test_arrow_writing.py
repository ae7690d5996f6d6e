"""Blocks of trajectories as record batches: the same with and without kernels, sharing memory, of whole trajectories."""

import sys

import pyarrow as pa
import pytest

from relayrl.bench.codec_rows import example_rollout
from relayrl.compiled.loader import OFF, kernels
from relayrl.data.arrow.arrow_writing import to_batch, to_batches
from relayrl.data.arrow.layout_book import LayoutBook
from relayrl.data.columns import Trajectory
from relayrl.testing.trajectory_examples import example_trajectories

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no compiled kernels here")


def batches(trajectories: list[Trajectory]) -> list[pa.RecordBatch]:
    return [to_batch(block) for block in LayoutBook().blocks(trajectories)]


def message(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue().to_pybytes()


@needs_kernels
def test_batches_are_the_same_with_and_without_kernels(use_kernels):
    trajectories = list(example_trajectories(0))
    at_once = batches(trajectories)
    use_kernels(OFF)
    one_by_one = batches(trajectories)
    assert len(at_once) == len(one_by_one) > 5
    for batch, other in zip(at_once, one_by_one, strict=True):
        batch.validate(full=True)
        assert batch.schema.equals(other.schema, check_metadata=True)
        assert message(batch) == message(other)  # of NaNs, the bits


def test_a_batch_shares_the_memory_of_its_block_and_lets_go_of_it():
    (block,) = LayoutBook().blocks([next(iter(example_trajectories(0)))])
    reward = block.arrays[0]
    unseen = sys.getrefcount(reward)
    batch = to_batch(block)
    assert batch.column("reward").buffers()[1].address == reward.ctypes.data
    del batch
    assert sys.getrefcount(reward) == unseen


def test_batches_hold_whole_trajectories_up_to_a_number_of_rows():
    block = example_rollout(40, 3, mean_episode_steps=8.0).trajectories()
    lengths = block.headers.num_steps.tolist()

    def rows(max_rows: int) -> list[int]:
        return [batch.num_rows for _, batch in to_batches([block], max_rows)]

    assert rows(1000) == [120]
    assert sum(rows(20)) == 120
    assert max(rows(20)) <= max(20, *lengths)
    assert rows(1) == lengths
