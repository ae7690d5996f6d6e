"""Directories of part files: rolling, torn ends, damage, unfinished files, failed writes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_steps import plain_trajectory

from relayrl.data.arrow.codec import Compression
from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, DecodeError, SinkWriteError
from relayrl.sinks.contract import SourceCount, open_sink, open_source
from relayrl.sinks.sink_settings import FileSettings, SinkSettings

Place = Callable[[str], str]
FILES = ["arrow", "parquet", "csv"]
SUFFIXES = {"arrow": "*.arrows", "parquet": "*.parquet", "csv": "*.csv"}


def _episodes(url: str) -> list[int]:
    with open_source(url) as source:
        return [trajectory.episode for trajectory in source]


def _some(first: int, last: int) -> list[Trajectory]:
    return [plain_trajectory(0, number) for number in range(first, last)]


def _folder(url: str) -> Path:
    return Path(url.partition(":")[2])


@pytest.mark.parametrize("kind", FILES)
def test_parts_roll_by_rows_and_read_as_one(kind: str, place: Place) -> None:
    url = place(kind)
    with open_sink(url, SinkSettings(files=FileSettings(max_part_rows=40))) as sink:
        for first in range(0, 10, 2):
            sink.write(_some(first, first + 2))
            sink.flush()
    assert len(list(_folder(url).glob(SUFFIXES[kind]))) == 5
    assert _episodes(url) == list(range(10))


@pytest.mark.parametrize("kind", FILES)
def test_parts_roll_by_bytes_within_a_flush(kind: str, place: Place) -> None:
    url = place(kind)
    with open_sink(url, SinkSettings(files=FileSettings(max_part_bytes=3_000, max_batch_rows=20))) as sink:
        sink.write(_some(0, 12))
    assert len(list(_folder(url).glob(SUFFIXES[kind]))) >= (1 if kind == "csv" else 3)
    assert _episodes(url) == list(range(12))


def test_a_trajectory_longer_than_a_batch_is_one_batch(place: Place) -> None:
    url = place("parquet")
    with open_sink(url, SinkSettings(files=FileSettings(max_batch_rows=10))) as sink:
        sink.write([plain_trajectory(0, 0, num_steps=1_000)])
    with open_source(url) as source:
        assert [len(trajectory) for trajectory in source] == [1_000]


@pytest.mark.parametrize("compression", Compression)
def test_arrow_parts_may_be_compressed(compression: Compression, place: Place) -> None:
    url = place("arrow")
    with open_sink(url, SinkSettings(files=FileSettings(arrow_compression=compression))) as sink:
        sink.write(_some(0, 3))
    assert _episodes(url) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["arrow", "csv"])
def test_wherever_a_part_is_torn_all_before_is_read_and_the_rest_reported(
    kind: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    url, copy = place(kind), place(kind)
    ends = [0]
    sink = open_sink(url)
    for number in range(3):
        sink.write([plain_trajectory(0, number)])
        sink.flush()
        (path,) = _folder(url).glob(SUFFIXES[kind])
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    shutil.copytree(_folder(url), _folder(copy))
    sink.close()
    torn = _folder(copy) / path.name
    for cut in [*range(1, len(data), 397), *(end - 1 for end in ends[1:]), *ends[1:]]:
        torn.write_bytes(data[:cut])
        num_whole = sum(end <= cut for end in ends[1:])
        caplog.clear()
        with open_source(copy) as source, caplog.at_level(logging.WARNING):
            assert [trajectory.episode for trajectory in source] == list(range(num_whole)), cut
            assert source.report.torn == ({} if cut in ends else {str(torn): source.report.torn.get(str(torn))})
            assert source.count() == SourceCount(num_whole, 20 * num_whole)
        assert ("never flushed" in caplog.text) == (cut not in ends)


def test_damage_inside_a_closed_arrow_part_without_checksums_is_an_error(place: Place) -> None:
    url = place("arrow")
    with open_sink(url) as sink:
        for number in range(3):
            sink.write([plain_trajectory(0, number)])
            sink.flush()
    (path,) = _folder(url).glob("*.arrows")
    data = bytearray(path.read_bytes())
    data[data.index(b"\xff\xff\xff\xff", len(data) // 2)] = 0
    path.write_bytes(data)
    path.with_suffix(".sums").unlink()
    with open_source(url) as source, pytest.raises(DecodeError, match="was closed, but is damaged"):
        list(source)


def test_a_csv_cell_that_is_no_number_is_an_error(place: Place) -> None:
    url = place("csv")
    with open_sink(url) as sink:
        sink.write(_some(0, 1))
    (path,) = _folder(url).glob("*.csv")
    path.write_text(path.read_text().replace(",1,", ",one,", 1))
    path.with_suffix(".sums").unlink()
    with open_source(url) as source, pytest.raises(DecodeError, match="is damaged"):
        list(source)


def test_an_unfinished_parquet_file_is_left_out_and_reported(place: Place) -> None:
    url = place("parquet")
    with open_sink(url) as sink:
        sink.write(_some(0, 2))
    unfinished = _folder(url) / "part-1-x-0.parquet.tmp"
    unfinished.write_bytes(b"PAR1")
    with open_source(url) as source:
        assert len(list(source)) == 2
        assert source.report.unfinished == [str(unfinished)]


@pytest.mark.parametrize("kind", FILES)
def test_a_failed_flush_keeps_what_it_could_not_write_for_the_next(kind: str, place: Place) -> None:
    url = place(kind)
    with open_sink(url, SinkSettings(files=FileSettings(max_part_rows=1))) as sink:
        sink.write(_some(0, 2))
        sink.flush()
        kept = _folder(url).rename(_folder(url).with_name("elsewhere"))
        _folder(url).write_text("a file where the directory was")
        for more in (_some(2, 4), [plain_trajectory(1, 9, group="another")]):
            sink.write(more)
            with pytest.raises(SinkWriteError, match="not durable yet") as failure:
                sink.flush()
        assert failure.value.num_trajectories == 3
        _folder(url).unlink()
        kept.rename(_folder(url))
        sink.flush()
    assert sorted(_episodes(url)) == [0, 1, 2, 3, 9]


@pytest.mark.parametrize("kind", FILES)
def test_closing_lets_go_even_when_the_last_flush_fails(kind: str, place: Place) -> None:
    url = place(kind)
    sink = open_sink(url)
    sink.write(_some(0, 2))
    shutil.rmtree(_folder(url))
    with pytest.raises(SinkWriteError, match="2 trajectories are not durable"):
        sink.close()
    sink.close()


def test_copies_are_counted_once_and_reported(place: Place) -> None:
    url = place("arrow")
    with open_sink(url) as one, open_sink(url) as other:
        one.write(_some(0, 3))
        other.write(_some(1, 4))
    with open_source(url) as source:
        assert sorted(trajectory.episode for trajectory in source) == [0, 1, 2, 3]
        assert source.report.num_duplicates == 2
        assert source.count() == SourceCount(4, 80)


def test_a_place_without_anything_says_so(tmp_path: Path, place: Place) -> None:
    with pytest.raises(ConfigError, match="holds nothing: there is no directory"):
        open_source(f"arrow:{tmp_path / 'nowhere'}")
    url = place("parquet")
    with open_sink(url) as sink:
        sink.write(_some(0, 1))
    with pytest.raises(ConfigError, match=r"there are parquet files; write parquet:"):
        open_source(f"arrow:{_folder(url)}")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the directory"):
        open_sink(f"arrow:{tmp_path / 'file' / 'inside'}")
