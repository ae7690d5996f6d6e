"""`sqlite:FILE`: one database file, with Python's own driver.

A flush is one transaction, committed with fsync (`synchronous = FULL`). Writers wait for each other; readers see the last
commit and are never in the way (write-ahead log). Why not ADBC: ADR 0005. Rows and layouts have checksums,
which reading compares.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from relayrl.data.arrow.schema import REWARD, Layout
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, by_layout, joined_blocks, num_trajectories, without
from relayrl.errors import ConfigError, DecodeError, RelayRLError, SinkClosedError, SinkError, SinkWriteError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.contract import (
    ReadReport,
    SourceCount,
    TrajectorySink,
    TrajectorySource,
    rest_of,
)
from relayrl.sinks.databases.database_migrations import (
    MARKS_SINCE,
    SQLITE,
    SQLITE_CHECKSUMS_SINCE,
    SQLITE_STEPS_SINCE,
    TABLES,
    VERSION_TABLE,
    missing_statements,
)
from relayrl.sinks.databases.database_rows import (
    BEFORE_STEPS,
    DATA,
    HEADER,
    LayoutKeys,
    layout_digest,
    require_fits,
    trajectory_of,
)
from relayrl.sinks.databases.layout_json import layout_from_json
from relayrl.sinks.databases.retries import BackOff
from relayrl.sinks.databases.sqlite_rows import IMAGE, LoadedSteps, insert_trajectories, row_crc32, uuid_text
from relayrl.sinks.files.parts_sink import make_directory, sync_path
from relayrl.sinks.sink_settings import SinkSettings

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

    def _check(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryBlock]:
        return [require_fits(block) for block in super()._check(trajectories)]

    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
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
        _require_tables(connection, self._url)
        connection.execute(VERSION_TABLE)
        row = connection.execute("SELECT version FROM relayrl_schema").fetchone()
        for statement in missing_statements(SQLITE, row[0] if row else 0, self._url):
            connection.execute(statement)
        connection.execute("DELETE FROM relayrl_schema")
        connection.execute("INSERT INTO relayrl_schema VALUES (?)", (len(SQLITE),))

    def _store(self, blocks: Sequence[TrajectoryBlock]) -> None:
        connection = self._connected()
        ids = [uuid_text(each) for block in blocks for each in block.headers.trajectory_ids]
        query = "SELECT trajectory_id FROM trajectories WHERE trajectory_id IN (SELECT value FROM json_each(?))"
        known = {UUID(found).bytes for (found,) in connection.execute(query, (json.dumps(ids),))}
        new = [joined_blocks(group) for group in by_layout(without(blocks, known))]
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

    def _mark(self, trajectory_ids: Collection[UUID]) -> None:
        def insert() -> None:
            connection = self._connected()
            rows = [(str(each),) for each in trajectory_ids]
            mark = "INSERT INTO abandoned VALUES (?) ON CONFLICT DO NOTHING"
            _in_transaction(connection, lambda: connection.executemany(mark, rows))

        try:
            self._with_retries(insert)
        except sqlite3.Error as error:
            self._release()
            raise SinkWriteError(f"cannot write to {self._url}: {error}", len(trajectory_ids)) from error

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


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], object]) -> None:
    """IMMEDIATE: a writer waits at the beginning, and what it reads stays true until it commits."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        work()
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _require_tables(connection: sqlite3.Connection, url: str) -> None:
    """`ConfigError` where a table of ours is a view or virtual: reading one may never end, or run code of the file's maker."""
    connection.execute("PRAGMA trusted_schema = OFF")
    query = f"SELECT name, type, sql FROM sqlite_schema WHERE lower(name) IN ({', '.join('?' * len(TABLES))})"
    for name, kind, sql in connection.execute(query, TABLES):
        if kind != "table" or not sql.upper().startswith("CREATE TABLE"):
            raise ConfigError(f"{url} is no database of RelayRL: {name!r} is a view or a virtual table")


class SqliteSource(TrajectorySource):
    """Reads what was committed when a pass begins."""

    def __init__(self, url: str, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"{url} holds nothing: there is no file {path}")
        self._url = url
        self._is_closed = False
        self.report = ReadReport()
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            _require_tables(self._connection, url)
            (version,) = self._connection.execute("SELECT version FROM relayrl_schema").fetchone()
            if not isinstance(version, int):
                raise TypeError(f"its version is {version!r:.40}")
            missing_statements(SQLITE, version, url)
        except (sqlite3.Error, TypeError, ValueError, ConfigError) as error:
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{url} is no database of RelayRL: {error}") from error
        self._checksum = "crc32" if version >= SQLITE_CHECKSUMS_SINCE else "NULL"
        self._has_marks = version >= MARKS_SINCE
        missing = {} if version >= SQLITE_STEPS_SINCE else BEFORE_STEPS | {"step_data": "x''"}
        self._columns = ", ".join(missing.get(name, name) for name in (*HEADER, *DATA))

    @property
    def url(self) -> str:
        return self._url

    def __iter__(self) -> Iterator[Trajectory]:
        return self._pass("true", ())

    def of_envs(self, env_ids: Collection[UUID], first_episode: int) -> Iterator[Trajectory]:
        wanted = json.dumps([str(env_id) for env_id in env_ids])
        return self._pass("env_id IN (SELECT value FROM json_each(?)) AND episode >= ?", (wanted, first_episode))

    def _pass(self, condition: str, values: tuple[object, ...]) -> Iterator[Trajectory]:
        self._begin()
        layouts = self._layouts()
        with self._damage_named():
            self._require_sound("trajectories")
            self.report.num_abandoned = self._num_left_out()
            columns = f"{self._columns}, {self._checksum}"
            query = f"SELECT {columns} FROM trajectories WHERE {condition} AND {self._kept()} ORDER BY trajectory"
            for *fields, crc32 in self._connection.execute(query, values):
                row = dict(zip((*HEADER, *DATA), fields, strict=True))
                if crc32 is None:
                    self.report.num_unchecked += 1
                elif crc32 != row_crc32(fields[: len(HEADER)], fields[len(HEADER) :]):
                    raise DecodeError(f"the row of trajectory {row['trajectory_id']} differs from its checksum")
                if row["layout"] not in layouts:  # committed after the pass began
                    layouts = self._layouts()
                yield trajectory_of(row, layouts[row["layout"]])

    def count(self) -> SourceCount:
        self._begin()
        # The length of a binary column stands before it, so that this reads no observation.
        numbers = "count(*), coalesce(sum(num_steps), 0), coalesce(sum(length(reward_data)), 0)"
        with self._damage_named():
            self._require_sound("trajectories")
            self.report.num_abandoned = self._num_left_out()
            query = f"SELECT {numbers} FROM trajectories WHERE {self._kept()}"
            num_trajectories, num_steps, num_bytes = self._connection.execute(query).fetchone()
            if num_steps * REWARD.dtype.itemsize != num_bytes:
                raise DecodeError(f"{num_steps} steps have {num_bytes} bytes of rewards")
        return SourceCount(num_trajectories, num_steps)

    def abandoned(self) -> frozenset[UUID]:
        if not self._has_marks:
            return frozenset()
        with self._damage_named():
            rows = self._connection.execute("SELECT trajectory_id FROM abandoned")
            return frozenset(UUID(text) for (text,) in rows)

    def _kept(self) -> str:
        """The condition on trajectories that a pass gives."""
        leaves_out = self._has_marks and not self.with_abandoned
        return "trajectory_id NOT IN (SELECT trajectory_id FROM abandoned)" if leaves_out else "true"

    def _num_left_out(self) -> int:
        if not self._has_marks or self.with_abandoned:
            return 0
        query = "SELECT count(*) FROM abandoned WHERE trajectory_id IN (SELECT trajectory_id FROM trajectories)"
        return int(self._connection.execute(query).fetchone()[0])

    def layouts(self) -> tuple[Layout, ...]:
        self._begin()
        return tuple(self._layouts().values())

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def _layouts(self) -> dict[int, Layout]:
        with self._damage_named():
            self._require_sound("layouts")
            rows = self._connection.execute(
                "SELECT layout, digest, description FROM layouts ORDER BY layout"
            ).fetchall()
            for key, digest, text in rows:
                if digest != layout_digest(text):
                    raise DecodeError(f"layout {key} differs from its digest")
            return {key: layout_from_json(text) for key, _, text in rows}

    def _begin(self) -> None:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()

    def _require_sound(self, table: str) -> None:
        """Whether every row is there once: SQLite compares the table's pages with its index of ids."""
        for (finding,) in self._connection.execute(f"PRAGMA integrity_check({table})"):
            if finding != "ok":
                raise DecodeError(finding)

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Whatever reading stumbles over is a `DecodeError` with the file's name."""
        try:
            yield
        except (sqlite3.Error, DecodeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DecodeError(f"cannot read {self._url}: {error}") from error
