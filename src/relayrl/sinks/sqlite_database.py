"""`sqlite:FILE`: one database file, with Python's own driver.

A flush is one transaction, committed with fsync (`synchronous = FULL`). Writers wait for each other; readers see the last
commit and are never in the way (write-ahead log). Why not ADBC: ADR 0005.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.data.schema import Layout
from relayrl.errors import ConfigError, DecodeError, RelayRLError
from relayrl.sinks.buffered import BufferedSink
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
from relayrl.sinks.database_rows import DATA, HEADER, require_fits, trajectory_of
from relayrl.sinks.layout_json import layout_from_json
from relayrl.sinks.layout_keys import LayoutKeys
from relayrl.sinks.part_files import make_directory, sync_path
from relayrl.sinks.retries import BackOff
from relayrl.sinks.sink_settings import SinkSettings
from relayrl.sinks.sqlite_rows import IMAGE, LoadedSteps, insert_trajectories, uuid_text
from relayrl.sinks.stored_block import StoredBlock, by_layout, joined, num_trajectories, without

T = TypeVar("T")
_DAMAGE = (sqlite3.Error, TypeError, ValueError)
"""What reading a damaged file ends in: the driver decodes texts, also of its own messages, that may be no UTF-8."""
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
        self._layout_keys = LayoutKeys()
        self._connection: sqlite3.Connection | None = None
        try:
            self._with_retries(self._connected)
        except _DAMAGE as error:
            self._release()
            raise SinkError(f"cannot open {url}: {error}") from error

    def _check(self, trajectories: Sequence[Trajectory]) -> list[StoredBlock]:
        return [require_fits(block) for block in super()._check(trajectories)]

    def _persist(self, blocks: Sequence[StoredBlock]) -> None:
        try:
            self._with_retries(lambda: self._store(blocks))
        except _DAMAGE as error:
            self._release()
            raise SinkWriteError(f"cannot write to {self._url}: {error}", num_trajectories(blocks)) from error

    def _with_retries(self, work: Callable[[], T]) -> T:
        """Again while another writer has the file, or when one was faster with a trajectory; until the deadline."""
        back_off = BackOff(self._settings.database)
        while True:
            try:
                return work()
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                code = error.sqlite_errorcode
                is_transient = code & 0xFF in _TRANSIENT or code == sqlite3.SQLITE_CONSTRAINT_UNIQUE
                if not is_transient or not back_off.wait():
                    raise

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            timeout_s = self._settings.database.connect_timeout_s
            connection = sqlite3.connect(self._path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"ATTACH ':memory:' AS {IMAGE}")
                _in_transaction(connection, lambda: self._migrate(connection))
                sync_path(self._path.absolute().parent)
            except (*_DAMAGE, RelayRLError, OSError):
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

    def _store(self, blocks: Sequence[StoredBlock]) -> None:
        connection = self._connected()
        ids = [uuid_text(each) for block in blocks for each in block.headers.trajectory_ids]
        query = "SELECT trajectory_id FROM trajectories WHERE trajectory_id IN (SELECT value FROM json_each(?))"
        known = {UUID(found).bytes for (found,) in connection.execute(query, (json.dumps(ids),))}
        new = [joined(group) for group in by_layout(without(blocks, known))]
        if not new:
            return
        self._layout_keys.begin()
        steps = LoadedSteps(connection, new)

        def insert() -> None:
            (first_row,) = connection.execute('SELECT coalesce(max("row"), 0) + 1 FROM steps').fetchone()
            steps.insert(first_row)
            for block in new:
                keys = (first_row + block.headers.ends - block.headers.num_steps).tolist()
                insert_trajectories(connection, block, keys, self._layout_key(connection, block.layout))
                first_row += block.num_rows

        try:
            _in_transaction(connection, insert)
        finally:
            steps.drop()
        self._layout_keys.commit()

    def _layout_key(self, connection: sqlite3.Connection, layout: Layout) -> int:
        def find_or_make(text: str, digest: str) -> int:
            insert = "INSERT INTO layouts (digest, description) VALUES (?, ?) ON CONFLICT DO NOTHING"
            connection.execute(insert, (digest, text))
            (key,) = connection.execute("SELECT layout FROM layouts WHERE digest = ?", (digest,)).fetchone()
            return int(key)

        return self._layout_keys.key(layout, find_or_make)

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        self._layout_keys.forget()
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
            if not isinstance(version, int):
                raise TypeError(f"its version is {version!r:.40}")
        except _DAMAGE as error:
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
        except (*_DAMAGE, KeyError) as error:
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
        try:
            rows = self._execute("SELECT layout, description FROM layouts ORDER BY layout").fetchall()
            return {key: layout_from_json(text) for key, text in rows}
        except _DAMAGE as error:
            raise DecodeError(f"cannot read {self._url}: {error}") from error

    def _execute(self, query: str) -> sqlite3.Cursor:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()
        try:
            return self._connection.execute(query)
        except _DAMAGE as error:
            raise DecodeError(f"cannot read {self._url}: {error}") from error
