"""`sqlite:FILE`: one database file, with Python's own driver.

A flush is one transaction, committed with fsync (`synchronous = FULL`). Writers wait for each other; readers see the last
commit and are never in the way (write-ahead log). Why not ADBC: ADR 0005.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from relayrl.data.columns import Trajectory
from relayrl.data.schema import Layout
from relayrl.errors import ConfigError, DecodeError, RelayRLError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.checked_trajectory import CheckedTrajectory
from relayrl.sinks.contract import (
    ReadReport,
    SinkClosedError,
    SinkError,
    SinkWriteError,
    SourceCount,
    TrajectorySink,
    TrajectorySource,
    rest_of,
)
from relayrl.sinks.database_migrations import SQLITE, VERSION_TABLE, missing_statements
from relayrl.sinks.database_rows import DATA, HEADER, layout_text_and_digest, require_fits, trajectory_of
from relayrl.sinks.layout_json import layout_from_json
from relayrl.sinks.part_files import make_directory, sync_path
from relayrl.sinks.retries import BackOff
from relayrl.sinks.sink_settings import SinkSettings
from relayrl.sinks.sqlite_rows import insert_steps, insert_trajectories

T = TypeVar("T")
_TRANSIENT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink that adds to the file of `url`, which is made if it is not there."""
    return SqliteSink(url, Path(rest_of(url, "FILE")), settings)


def open_source(url: str) -> TrajectorySource:
    """What the file of `url` holds."""
    return SqliteSource(url, Path(rest_of(url, "FILE")))


class SqliteSink(BufferedSink):
    """Adds to a database file."""

    def __init__(self, url: str, path: Path, settings: SinkSettings) -> None:
        super().__init__(url, settings)
        make_directory(path.parent)
        self._path = path
        self._layout_keys: dict[int, tuple[Layout, int]] = {}
        self._connection: sqlite3.Connection | None = None
        try:
            self._with_retries(self._connected)
        except sqlite3.Error as error:
            self._release()
            raise SinkError(f"cannot open {url}: {error}") from error

    def _check(self, trajectory: Trajectory) -> CheckedTrajectory:
        return require_fits(super()._check(trajectory))

    def _persist(self, records: Sequence[CheckedTrajectory]) -> None:
        try:
            self._with_retries(lambda: self._store(records))
        except sqlite3.Error as error:
            self._release()
            raise SinkWriteError(f"cannot write to {self._url}: {error}", len(records)) from error

    def _with_retries(self, work: Callable[[], T]) -> T:
        """Again while another writer has the file, until the deadline."""
        back_off = BackOff(self._settings.database)
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _TRANSIENT or not back_off.wait():
                    raise

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            timeout_s = self._settings.database.connect_timeout_s
            connection = sqlite3.connect(self._path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                _in_transaction(connection, lambda: self._migrate(connection))
                sync_path(self._path.absolute().parent)
            except (sqlite3.Error, RelayRLError, OSError):
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute(VERSION_TABLE)
        row = connection.execute("SELECT version FROM relayrl_schema").fetchone()
        for statement in missing_statements(SQLITE, row[0] if row else 0, self._url):
            connection.execute(statement)
        connection.execute("DELETE FROM relayrl_schema")
        connection.execute("INSERT INTO relayrl_schema VALUES (?)", (len(SQLITE),))

    def _store(self, records: Sequence[CheckedTrajectory]) -> None:
        connection, new_keys = self._connected(), dict[int, tuple[Layout, int]]()

        def insert() -> None:
            ids = [str(record.trajectory.trajectory_id) for record in records]
            query = "SELECT trajectory_id FROM trajectories WHERE trajectory_id IN (SELECT value FROM json_each(?))"
            known = {found for (found,) in connection.execute(query, (json.dumps(ids),))}
            new = [record for name, record in zip(ids, records, strict=True) if name not in known]
            for record in new:
                new_keys[id(record.layout)] = self._layout_key(connection, record.layout, new_keys)
            (first,) = connection.execute('SELECT coalesce(max("row"), 0) + 1 FROM steps').fetchone()
            keys = list(accumulate((record.num_steps for record in new), initial=first))[:-1]
            insert_trajectories(connection, new, keys, [new_keys[id(record.layout)][1] for record in new])
            insert_steps(connection, new, keys)

        _in_transaction(connection, insert)
        self._layout_keys.update(new_keys)

    def _layout_key(
        self, connection: sqlite3.Connection, layout: Layout, new_keys: dict[int, tuple[Layout, int]]
    ) -> tuple[Layout, int]:
        """The key of a layout's row, which is made if it is not there; remembered only once it is committed."""
        remembered = new_keys.get(id(layout)) or self._layout_keys.get(id(layout))
        if remembered is not None:
            return remembered
        text, digest = layout_text_and_digest(layout)
        insert = "INSERT INTO layouts (digest, description) VALUES (?, ?) ON CONFLICT DO NOTHING"
        connection.execute(insert, (digest, text))
        (key,) = connection.execute("SELECT layout FROM layouts WHERE digest = ?", (digest,)).fetchone()
        return layout, key

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        self._layout_keys.clear()
        if connection is not None:
            connection.close()


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], None]) -> None:
    """IMMEDIATE: a writer waits at the beginning, and what it reads stays true until it commits."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        work()
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class SqliteSource(TrajectorySource):
    """Reads what was committed when a pass begins."""

    def __init__(self, url: str, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"{url} holds nothing: there is no file {path}")
        self._url = url
        self._is_closed = False
        self.report = ReadReport()
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        try:
            (version,) = self._connection.execute("SELECT version FROM relayrl_schema").fetchone()
        except (sqlite3.Error, TypeError) as error:
            self.close()
            raise ConfigError(f"{url} is no database of RelayRL: {error}") from error
        if version > len(SQLITE):
            self.close()
            missing_statements(SQLITE, version, url)

    @property
    def url(self) -> str:
        return self._url

    def __iter__(self) -> Iterator[Trajectory]:
        layouts = self._layouts()
        query = f"SELECT {', '.join((*HEADER, *DATA))} FROM trajectories ORDER BY trajectory"
        try:
            for row in self._execute(query):
                if row["layout"] not in layouts:  # committed after the pass began
                    layouts = self._layouts()
                yield trajectory_of(dict(row), layouts[row["layout"]])
        except (sqlite3.Error, KeyError) as error:
            raise DecodeError(f"cannot read {self._url}: {error}") from error

    def count(self) -> SourceCount:
        row = self._execute("SELECT count(*), coalesce(sum(num_steps), 0) FROM trajectories").fetchone()
        return SourceCount(*row)

    def layouts(self) -> tuple[Layout, ...]:
        return tuple(self._layouts().values())

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def _layouts(self) -> dict[int, Layout]:
        rows = self._execute("SELECT layout, description FROM layouts ORDER BY layout").fetchall()
        return {key: layout_from_json(text) for key, text in rows}

    def _execute(self, query: str) -> sqlite3.Cursor:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()
        return self._connection.execute(query)
