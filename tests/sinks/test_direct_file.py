"""Files hold what was written, through the page cache or past it, and whatever kills their writer."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from relayrl.bench.servers.trajectory_producer import numbered_trajectory, trajectory_name
from relayrl.compiled import loader
from relayrl.sinks.contract import open_source
from relayrl.sinks.files.direct_file import DirectFile
from relayrl.sinks.files.parts_sink import SummedFile
from relayrl.sinks.files.parts_source import check_sums
from relayrl.testing.sink_contract import difference

KINDS = [SummedFile, DirectFile]
LENGTHS = [0, 1, 4095, 4096, 4097, 70_000, (128 << 10) + 5, (2 << 20) - 1, 2 << 20, (5 << 20) + 17]
WRITE = os.pwrite


@pytest.mark.parametrize("kind", KINDS)
def test_after_every_sync_a_file_is_what_was_written_and_all_of_it_is_summed(
    kind: type[SummedFile], tmp_path: Path
) -> None:
    rng, path, written = random.Random(0), tmp_path / "file.arrows", bytearray()
    file = kind(path, path)
    for length in [*LENGTHS, *rng.sample(LENGTHS, len(LENGTHS)), 10, 10, 10]:
        data = rng.randbytes(length)
        file.write(data)
        written += data
        assert file.tell() == len(written)
        if rng.random() < 0.6:
            file.sync()
            assert path.read_bytes() == written
            assert check_sums(path) == len(written)
    file.write(b"the end")
    file.close()
    file.close()
    assert file.closed
    assert path.read_bytes() == written + b"the end"
    assert check_sums(path) == len(written) + 7


def test_large_pieces_pass_by_the_page_cache_and_the_rest_of_a_block_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DirectFile(tmp_path / "file", tmp_path / "file")
    if file._direct is None:
        pytest.skip("this file system refuses O_DIRECT")
    pieces: list[tuple[bool, int, int]] = []

    def noted(descriptor: int, data: memoryview, offset: int) -> int:
        pieces.append((descriptor == file._direct, len(data), offset))
        return WRITE(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    for length in (200_000, 100, 300_000):
        file.write(bytes(length))
        file.sync()
    # 200,000 bytes are 48 blocks and 3,392; the second sync has 3,492 of its block, the third 74 blocks more.
    assert pieces == [
        (True, 196_608, 0),
        (False, 3_392, 196_608),
        (False, 3_492, 196_608),
        (True, 303_104, 196_608),
        (False, 388, 499_712),
    ]
    file.close()


@pytest.mark.parametrize("refuses", ["open", "write"])
def test_where_direct_writing_is_refused_a_file_is_written_through_the_page_cache(
    refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As file systems without O_DIRECT do, and those that want larger blocks than ours."""
    open_any = os.open

    def refuse_open(path: Path, flags: int, *more: int) -> int:
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        return open_any(path, flags, *more)

    if refuses == "open":
        monkeypatch.setattr(os, "open", refuse_open)
    file = DirectFile(tmp_path / "file", tmp_path / "file")
    direct = file._direct

    def refuse_write(descriptor: int, data: memoryview, offset: int) -> int:
        if descriptor == direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return WRITE(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse_write)
    data = random.Random(1).randbytes(5 << 20)
    for begin in range(0, len(data), 1_000_003):
        file.write(data[begin : begin + 1_000_003])
        file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == data
    assert file._direct is None


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = DirectFile(tmp_path / "file", tmp_path / "file")
    file.write(bytes(300_000))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.sync()
    file.abandon()


@pytest.mark.skipif(loader.kernels() is None, reason="without the kernels nothing is stored as it came")
def test_kill_9_loses_no_stream_that_was_flushed(tmp_path: Path) -> None:
    """Every time the next process goes on after what was printed: what was flushed and not printed is there twice."""
    url, client_id, rng = f"arrow:{tmp_path / 'streams'}", uuid4(), random.Random(2)
    num_flushed = 0
    for _ in range(4):
        command = [sys.executable, str(Path(__file__).with_name("stream_recorder.py"))]
        command += [url, str(client_id), str(num_flushed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            num_flushed = int(process.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.05))
            process.kill()
            num_flushed = max([num_flushed, *(int(line) for line in process.stdout if line.endswith("\n"))])
    with open_source(url) as source:
        found = {each.trajectory_id: each for each in source}
    numbers = [each.episode for each in found.values()]
    assert sorted(numbers) == list(range(len(numbers)))
    assert num_flushed <= len(numbers) <= num_flushed + 8
    for number in numbers:
        stored = found[trajectory_name(client_id, number)]
        assert difference(stored, numbered_trajectory(client_id, number, 500 + number % 7)) is None
