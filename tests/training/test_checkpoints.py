"""The checkpoint folder: retention, damage, kills and full disks."""

import multiprocessing
import os
import resource
import signal
import time

import numpy as np
import pytest

from relayrl.errors import CheckpointError, DiskError
from relayrl.training.files.atomic_files import write_whole
from relayrl.training.files.checkpoints import CheckpointStore, load_checkpoint
from waiting import wait_until


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_are_kept_and_the_best_besides(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save_best(1, {"policy": 1})
    for step in (1, 2, 3):
        store.save(step, {"at": step})
    assert names(tmp_path) == ["best.ckpt", "step_000000000002.ckpt", "step_000000000003.ckpt"]
    assert store.load_newest() == (3, {"at": 3})
    assert load_checkpoint(store.best_path) == (1, {"policy": 1})


def test_an_empty_folder_has_none(tmp_path):
    assert CheckpointStore(tmp_path / "nothing", keep=2).load_newest() is None


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path, caplog):
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2):
        store.save(step, {"x": np.arange(4) + step})
    flip(store.paths()[-1])
    step, state = store.load_newest()
    assert (step, state["x"].tolist()) == (1, [1, 2, 3, 4])
    assert "step_000000000002.ckpt is damaged" in caplog.text


def test_a_damaged_newest_does_not_push_out_whole_ones(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 5):
        store.save(step, {"x": np.zeros(4)})
    flip(store.paths()[-1])
    assert store.load_newest()[0] == 1
    store.save(3, {"x": np.zeros(4)})
    assert names(tmp_path) == ["step_000000000001.ckpt", "step_000000000003.ckpt"]


def test_only_damaged_ones_is_an_error_not_a_fresh_start(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, {"x": np.zeros(4)})
    flip(store.paths()[0])
    with pytest.raises(CheckpointError, match="all 1 checkpoints"):
        store.load_newest()


def save_for_ever(directory, step):
    store = CheckpointStore(directory, keep=2)
    while True:
        step += 1
        store.save(step, {"x": np.full(200_000, step)})


def test_a_kill_during_a_save_leaves_a_whole_checkpoint(tmp_path):
    context = multiprocessing.get_context("fork")
    store = CheckpointStore(tmp_path, keep=2)
    newest = 0
    for delay in (0.03, 0.05, 0.041, 0.067, 0.052):
        process = context.Process(target=save_for_ever, args=(tmp_path, newest))
        process.start()
        before = newest
        wait_until(lambda name=f"step_{before:012d}.ckpt": store.paths() and store.paths()[-1].name > name)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        newest, state = store.load_newest()
        assert newest > before
        assert (state["x"] == newest).all()
    assert not store._damaged
    store.save(newest + 1, {})
    assert all(name.endswith(".ckpt") for name in names(tmp_path))


@pytest.fixture
def small_disk():
    """Files may not grow beyond 100 kB: writing fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_told_and_leaves_the_one_before(tmp_path, small_disk):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, {"x": np.zeros(10)})
    with pytest.raises(DiskError, match=r"cannot write .*step_000000000002.ckpt: File too large"):
        store.save(2, {"x": np.zeros(100_000)})
    assert names(tmp_path) == ["step_000000000001.ckpt"]
    assert store.load_newest()[0] == 1


def test_a_file_that_cannot_be_replaced_stays(tmp_path, small_disk):
    write_whole(tmp_path / "a.txt", b"before")
    with pytest.raises(DiskError, match="Make room"):
        write_whole(tmp_path / "a.txt", bytes(200_000))
    assert (tmp_path / "a.txt").read_bytes() == b"before"
    assert names(tmp_path) == ["a.txt"]
