"""A batch of plain memory: handed to Arrow in one call or array by array, it is the same batch, and it keeps its memory."""

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from relayrl.compiled.loader import OFF, VARIABLE, kernels
from relayrl.data.columns import Trajectory
from relayrl.sinks.layout_book import LayoutBook
from relayrl.sinks.row_batches import to_batch
from relayrl.testing.trajectory_examples import example_trajectories

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no compiled kernels here")


def batches(trajectories: list[Trajectory]) -> list[pa.RecordBatch]:
    return [to_batch(block) for block in LayoutBook().check(trajectories)]


def message(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue().to_pybytes()


@needs_kernels
def test_one_call_gives_the_batches_that_many_give(monkeypatch):
    trajectories = list(example_trajectories(0))
    at_once = batches(trajectories)
    monkeypatch.setenv(VARIABLE, OFF)
    one_by_one = batches(trajectories)
    assert len(at_once) == len(one_by_one) > 5
    for batch, other in zip(at_once, one_by_one, strict=True):
        batch.validate(full=True)
        assert batch.schema.equals(other.schema, check_metadata=True)
        assert message(batch) == message(other)  # of NaNs, the bits


@needs_kernels
def test_a_batch_keeps_its_memory_and_lets_go_of_it():
    numbers = np.arange(100_000)
    unseen = sys.getrefcount(numbers)
    nodes = np.array([[100_000, 1, 1, 0], [100_000, 2, 0, 0]])
    schema = pa.schema([("x", pa.int64())])
    held = [pa.RecordBatch._import_from_c(kernels().arrow_struct(nodes, [None, None, numbers]), schema)]
    assert sys.getrefcount(numbers) == unseen + 1
    assert held[0].column(0).to_pylist() == list(range(100_000))
    thread = threading.Thread(target=held.clear)  # Arrow lets go on whatever thread it pleases
    thread.start()
    thread.join()
    assert sys.getrefcount(numbers) == unseen


@needs_kernels
@pytest.mark.parametrize(
    ("nodes", "buffers"),
    [
        ([], []),
        ([[1, 1, 2, 0], [1, 1, 0, 0]], [None, None]),  # a child that is not there
        ([[1, 1, 0, 1]], [None]),  # a dictionary that is not there
        ([[1, 1, 0, 0], [1, 1, 0, 0]], [None, None]),  # an array that belongs to none
        ([[1, 2, 0, 0]], [None]),  # a buffer too few
        ([[1, 1, 0, 0]], [None, None]),  # and too many
        ([[-1, 1, 0, 0]], [None]),
        ([[1, 1, -1, 0]], [None]),
        ([[1, 1, 2**62, 0]], [None]),
    ],
)
def test_what_is_no_tree_is_refused(nodes, buffers):
    with pytest.raises(ValueError, match="no tree"):
        kernels().arrow_struct(np.array(nodes, np.int64).reshape(-1, 4), buffers)


@needs_kernels
def test_what_has_no_memory_is_refused():
    with pytest.raises(TypeError):
        kernels().arrow_struct(np.array([[1, 1, 0, 0]]), [3])
