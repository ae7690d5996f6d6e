"""A bit that flips in a record is an error, or makes no difference; what has no checksums is read and counted."""

from __future__ import annotations

import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from recorded_steps import plain_trajectory

from relayrl.compiled import loader
from relayrl.errors import ConfigError, DecodeError, RelayRLError
from relayrl.sinks.contract import SourceCount, open_sink, open_source
from relayrl.sinks.files.parts_sink import GridSum
from relayrl.testing.sink_contract import difference

Place = Callable[[str], str]
NUM_FLUSHES, NUM_FLIPS = 3, 150
RECORDED = [plain_trajectory(0, number, num_steps=8) for number in range(2 * NUM_FLUSHES)]


def _record(url: str) -> None:
    with open_sink(url) as sink:
        for begin in range(0, len(RECORDED), 2):
            sink.write(RECORDED[begin : begin + 2])
            sink.flush()


def _files(url: str) -> list[Path]:
    path = Path(url.partition(":")[2])
    return [path] if path.is_file() else sorted(path.iterdir())


def _is_whole(url: str) -> bool:
    """Whether all that was recorded is read back, and counted; errors are raised."""
    with open_source(url) as source:
        found = list(source)
        count = source.count()
    same = len(found) == len(RECORDED) and not any(map(difference, found, RECORDED))
    return same and count == SourceCount(len(RECORDED), 8 * len(RECORDED))


@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv", "sqlite"])
def test_a_flipped_bit_is_an_error_or_makes_no_difference(kind: str, place: Place) -> None:
    url, rng = place(kind), random.Random(0)
    _record(url)
    errors: list[str] = []
    for path in _files(url):
        data = path.read_bytes()
        for position in rng.sample(range(len(data)), min(len(data), NUM_FLIPS * (4 if kind == "sqlite" else 1))):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :])
            try:
                assert _is_whole(url), f"bit flipped in byte {position} of {path.name}"
            except RelayRLError as error:
                errors.append(str(error))
        path.write_bytes(data)
    assert _is_whole(url)
    assert all(url.partition(":")[2] in error for error in errors)
    assert len(errors) > (10 if kind == "sqlite" else NUM_FLIPS)  # of SQLite's pages most is empty, or for queries only


@pytest.mark.parametrize("kind", ["arrow", "csv"])
def test_a_flipped_bit_in_a_part_whose_writer_was_killed_is_an_error(kind: str, place: Place, tmp_path: Path) -> None:
    url = place(kind)
    sink = open_sink(url)
    sink.write(RECORDED)
    sink.flush()
    killed = shutil.copytree(Path(url.partition(":")[2]), tmp_path / "killed")
    sink.close()
    url = f"{kind}:{killed}"
    assert _is_whole(url)
    (path,) = (path for path in _files(url) if path.suffix in (".arrows", ".csv"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 4
    path.write_bytes(data)
    with open_source(url) as source, pytest.raises(DecodeError, match=r"bytes 0 to \d+ differ from their checksum"):
        list(source)


@pytest.mark.parametrize("kind", ["arrow", "csv"])
def test_a_closed_part_that_lost_its_end_is_an_error(kind: str, place: Place) -> None:
    url = place(kind)
    _record(url)
    (path,) = (path for path in _files(url) if path.suffix in (".arrows", ".csv"))
    path.write_bytes(path.read_bytes()[:-1])
    with open_source(url) as source, pytest.raises(DecodeError, match=r"was closed with \d+ bytes and has"):
        list(source)


def test_rows_of_sqlite_that_are_gone_from_the_table_but_not_from_its_index_are_missed(place: Place) -> None:
    url = place("sqlite")
    _record(url)
    path = Path(url.partition(":")[2])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'trajectories'").fetchone()
        (page_size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * page_size + 4] -= 1  # the number of cells on the table's first page
    path.write_bytes(data)
    with open_source(url) as source, pytest.raises(DecodeError):
        list(source)
    with open_source(url) as source, pytest.raises(DecodeError):
        source.count()


@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv", "sqlite"])
def test_records_without_checksums_are_read_and_counted_as_unchecked(kind: str, place: Place) -> None:
    url = place(kind)
    _record(url)
    with open_source(url) as source:
        assert len(list(source)) == len(RECORDED)
        assert source.report.num_unchecked == 0
    if kind == "sqlite":
        with closing(sqlite3.connect(url.partition(":")[2], isolation_level=None)) as database:
            for view in ("returns_by_policy_version", "episodes", "experience"):
                database.execute(f"DROP VIEW {view}")
            for view in ("returns_by_policy_version", "experience"):
                database.execute(f"CREATE VIEW {view} AS SELECT 1")
            for column in ("crc32", "end_step", "last_step", "step_data"):
                database.execute(f"ALTER TABLE trajectories DROP COLUMN {column}")
            database.execute("UPDATE relayrl_schema SET version = 3")
    for path in _files(url):
        if path.suffix == ".sums":
            path.unlink()
    with open_source(url) as source:
        assert not any(map(difference, source, RECORDED))
        assert source.report.num_unchecked == len(RECORDED)
    with open_sink(url) as sink:  # which adds the column to the database
        sink.write([plain_trajectory(1, 0)])
    with open_source(url) as source:
        assert len(list(source)) == len(RECORDED) + 1
        assert source.report.num_unchecked == len(RECORDED)


def test_checksums_that_a_loss_of_power_took_leave_the_rest_checked(place: Place) -> None:
    url = place("arrow")
    sink = open_sink(url)
    sink.write(RECORDED[:3])
    sink.flush()
    (path,) = (path for path in _files(url) if path.suffix == ".sums")
    first_line = path.read_bytes()
    sink.write(RECORDED[3:])
    sink.close()
    for lost in (first_line, first_line + b".arrows 12", first_line + bytes(4096)):
        path.write_bytes(lost)
        assert _is_whole(url)
        with open_source(url) as source:
            assert len(list(source)) == source.report.num_unchecked == len(RECORDED)
    part = path.with_suffix(".arrows")
    data = bytearray(part.read_bytes())
    data[2000] ^= 1
    part.write_bytes(data)
    with open_source(url) as source, pytest.raises(DecodeError, match="differ from their checksum"):
        list(source)


def _grid_sum(*pieces: bytes) -> int:
    grid = GridSum()
    for piece in pieces:
        grid.add(memoryview(piece))
    return grid.take()


@pytest.mark.parametrize("asked", ["", "off"])
def test_a_checksum_does_not_depend_on_the_pieces_that_bytes_come_in(
    asked: str, use_kernels: Callable[[str], None]
) -> None:
    use_kernels(asked)
    rng = random.Random(0)
    data = rng.randbytes(50_000)
    for _ in range(20):
        cuts = [0, *sorted(rng.sample(range(len(data)), 7)), len(data)]
        assert _grid_sum(*(data[a:b] for a, b in pairwise(cuts))) == _grid_sum(data)
    # Word 0 is 1 and word 512 is 2, so the sums of rows are 1, 2 and that of the first column is 3.
    two_rows = (1).to_bytes(4096, "little") + (2).to_bytes(8, "little")
    sums = b"".join(number.to_bytes(8, "little") for number in (1, 2, 3, *[0] * 511))
    assert _grid_sum(two_rows) == zlib.crc32(sums)


@pytest.mark.skipif(loader.kernels() is None, reason="without the kernels NumPy makes all checksums")
def test_the_kernel_makes_the_checksums_of_numpy(use_kernels: Callable[[str], None]) -> None:
    pieces = [random.Random(length).randbytes(length) for length in (0, 1, 4096, 3 * 4096, 4 * 4096, 9 * 4096 + 5)]
    sums = []
    for asked in ("", "off"):
        use_kernels(asked)
        # Behind a byte, rows begin where no word does.
        sums.append([_grid_sum(*pieces), *(_grid_sum(b"\xff", piece, piece) for piece in pieces)])
    assert sums[0] == sums[1]
    assert len(set(sums[0])) == len(sums[0])


@pytest.mark.parametrize("change", ["two bits", "two words", "two rows", "a zero page", "a burst"])
def test_a_checksum_tells_damage_from_what_was_written(change: str) -> None:
    rng = random.Random(0)
    data = rng.randbytes(64 * 4096)
    for _ in range(200):
        found = bytearray(data)
        a, b = (8 * each for each in rng.sample(range(len(data) // 8), 2))
        if change == "two bits":
            bit = 1 << rng.randrange(8)
            found[a] ^= bit
            found[b] ^= bit
        elif change == "two words":
            found[a : a + 8], found[b : b + 8] = data[b : b + 8], data[a : a + 8]
        elif change == "two rows":
            a, b = (4096 * each for each in rng.sample(range(64), 2))
            found[a : a + 4096], found[b : b + 4096] = data[b : b + 4096], data[a : a + 4096]
        elif change == "a zero page":
            found[a : a + 4096] = bytes(len(data[a : a + 4096]))
        else:
            found[a : a + 100] = rng.randbytes(len(data[a : a + 100]))
        assert found != data
        assert _grid_sum(bytes(found)) != _grid_sum(data)


@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv"])
def test_parts_with_checksums_of_an_older_version_are_checked_by_them(kind: str, place: Place) -> None:
    url = place(kind)
    _record(url)
    for sums in (path for path in _files(url) if path.suffix == ".sums"):
        begins: dict[str, int] = {}
        lines = []
        for line in sums.read_text().splitlines():
            suffix, end, _, state, _ = line.split(" ")
            piece = sums.with_suffix(suffix).read_bytes()[begins.get(suffix, 0) : int(end)]
            begins[suffix] = int(end)
            text = f"{suffix} {end} {zlib.crc32(piece):08x} {state}"
            lines.append(f"{text} {zlib.crc32(text.encode()):08x}\n")
        sums.write_text("".join(lines))
    assert _is_whole(url)
    part = next(path for path in _files(url) if path.suffix not in (".sums", ".json"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with open_source(url) as source, pytest.raises(DecodeError, match="differ from their checksum"):
        list(source)


@pytest.mark.parametrize("name", ["relayrl_schema", "layouts", "trajectories"])
def test_a_table_that_is_an_endless_view_is_refused(name: str, place: Place) -> None:
    url = place("sqlite")
    _record(url)
    with closing(sqlite3.connect(url.partition(":")[2], isolation_level=None)) as database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
        database.execute(f"ALTER TABLE {name} RENAME TO hidden")
        database.execute(
            f"CREATE VIEW {name} AS WITH RECURSIVE endless(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM endless) "
            f"SELECT {', '.join(f'n AS {column}' for column in columns)} FROM endless WHERE n < 0"
        )
    for open_it in (open_source, open_sink):
        with pytest.raises(ConfigError, match=f"{name!r} is a view or a virtual table"):
            open_it(url)
