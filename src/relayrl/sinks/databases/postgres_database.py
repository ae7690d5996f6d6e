"""`postgresql://…`: a PostgreSQL server, through psycopg and binary COPY (ADR 0005).

A flush is one transaction: which trajectories are there already, then the new ones and their steps by COPY. `trajectory_id` is
unique, so that of two writers of the same trajectory one is refused, starts over, and finds it there. When the connection is
lost, even during the commit, the sink reconnects with back-off and starts over; nothing is lost or stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from relayrl.config.passwords import without_password
from relayrl.data.arrow.schema import Layout
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock, by_layout, joined_blocks, num_trajectories, without
from relayrl.errors import ConfigError, DecodeError, SinkClosedError, SinkError, SinkWriteError
from relayrl.sinks.buffered import BufferedSink
from relayrl.sinks.contract import (
    ReadReport,
    SourceCount,
    TrajectorySink,
    TrajectorySource,
)
from relayrl.sinks.databases.database_migrations import (
    MARKS_SINCE,
    POSTGRES,
    POSTGRES_STEPS_SINCE,
    VERSION_TABLE,
    missing_statements,
)
from relayrl.sinks.databases.database_rows import BEFORE_STEPS, DATA, HEADER, LayoutKeys, require_fits, trajectory_of
from relayrl.sinks.databases.layout_json import layout_from_json
from relayrl.sinks.databases.postgres_connection import Watchdog, advice_on, connect, driver, reason_of
from relayrl.sinks.databases.postgres_copy import BEGIN, COPY_STEPS, COPY_TRAJECTORIES, END, step_rows, trajectory_rows
from relayrl.sinks.databases.retries import BackOff
from relayrl.sinks.sink_settings import DatabaseSettings, SinkSettings

if TYPE_CHECKING:
    import psycopg

_MIGRATION_LOCK = 0x72656C6179726C
"""Key of the advisory lock under which tables are made: "relayrl" in ASCII."""
_ROWS_PER_FETCH = 64


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink that adds to the database of `url`; its tables are made if they are not there."""
    return PostgresSink(url, settings)


def open_source(url: str) -> TrajectorySource:
    """What the database of `url` holds."""
    return PostgresSource(url, DatabaseSettings())


class PostgresSink(BufferedSink):
    """Adds to a database; holds one connection."""

    def __init__(self, url: str, settings: SinkSettings) -> None:
        super().__init__(without_password(url), settings)
        self._psycopg = driver()
        self._target = url
        self._layout_keys = LayoutKeys()
        self._link: tuple[psycopg.Connection, Watchdog] | None = None
        try:
            self._connected(settings.database.connect_timeout_s)
        except self._psycopg.Error as error:
            raise SinkError(
                f"cannot open {self._url}: {reason_of(url, error)}; {advice_on(url)}"
            ) from None  # the cause may quote a password

    def _check(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryBlock]:
        return [require_fits(block) for block in super()._check(trajectories)]

    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
        self._with_retries(lambda connection: self._store(connection, blocks), num_trajectories(blocks))

    def _mark(self, trajectory_ids: Collection[UUID]) -> None:
        ids = f"{{{','.join(map(str, trajectory_ids))}}}"
        query = "INSERT INTO abandoned SELECT unnest(%s::uuid[]) ON CONFLICT DO NOTHING"
        self._with_retries(lambda connection: connection.execute(query, (ids,)), len(trajectory_ids))

    def _with_retries(self, work: Callable[[psycopg.Connection], object], num_waiting: int) -> None:
        back_off = BackOff(self._settings.database)
        # OperationalError and InterfaceError: the server or the way to it; UniqueViolation: another writer was faster.
        transient = (
            self._psycopg.OperationalError,
            self._psycopg.InterfaceError,
            self._psycopg.errors.UniqueViolation,
        )
        while True:
            try:
                connection, watchdog = self._connected(max(1.0, back_off.remaining_s))
                with watchdog.limit(self._settings.database.statement_timeout_s):
                    work(connection)
                return
            except self._psycopg.Error as error:
                self._release()
                if not isinstance(error, transient) or not back_off.wait():
                    what = f"cannot write to {self._url} after {back_off.num_waits} retries"
                    raise SinkWriteError(f"{what}: {reason_of(self._target, error)}", num_waiting) from error

    def _connected(self, timeout_s: float) -> tuple[psycopg.Connection, Watchdog]:
        """The connection, made anew if there is none; its tables are those of this program."""
        if self._link is None:
            connection = connect(self._target, min(timeout_s, self._settings.database.connect_timeout_s))
            self._link = connection, Watchdog(connection)
            try:
                with self._link[1].limit(self._settings.database.statement_timeout_s):
                    self._migrate(connection)
            except (self._psycopg.Error, ConfigError):
                self._release()
                raise
        return self._link

    def _migrate(self, connection: psycopg.Connection) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            connection.execute(VERSION_TABLE)
            row = connection.execute("SELECT version FROM relayrl_schema").fetchone()
            statements = missing_statements(POSTGRES, row[0] if row else 0, self._url)
            for statement in statements:
                connection.execute(statement.encode())
            if statements:
                connection.execute("DELETE FROM relayrl_schema")
                connection.execute("INSERT INTO relayrl_schema VALUES (%s)", (len(POSTGRES),))

    def _store(self, connection: psycopg.Connection, blocks: Sequence[TrajectoryBlock]) -> None:
        self._layout_keys.begin()
        with connection.transaction():
            ids = f"{{{','.join(each.hex() for block in blocks for each in block.headers.trajectory_ids)}}}"
            query = "SELECT trajectory_id FROM trajectories WHERE trajectory_id = ANY(%s::uuid[])"
            known = {found.bytes for (found,) in connection.execute(query, (ids,), binary=True)}
            new = [joined_blocks(group) for group in by_layout(without(blocks, known))]
            if not new:
                return
            layout_keys = [self._layout_key(connection, block.layout) for block in new]
            query = "SELECT nextval(pg_get_serial_sequence('trajectories', 'trajectory')) FROM generate_series(1, %s)"
            numbers = (key for (key,) in connection.execute(query, (num_trajectories(new),)))
            keys = [list(islice(numbers, len(block))) for block in new]
            with connection.cursor() as cursor:
                with cursor.copy(COPY_TRAJECTORIES) as copy:
                    copy.write(BEGIN)
                    for block, some, layout_key in zip(new, keys, layout_keys, strict=True):
                        for piece in trajectory_rows(block, some, layout_key):
                            copy.write(piece)
                    copy.write(END)
                with cursor.copy(COPY_STEPS) as copy:
                    copy.write(BEGIN)
                    for block, some in zip(new, keys, strict=True):
                        for rows in step_rows(block, some):
                            copy.write(rows)
                    copy.write(END)
        self._layout_keys.commit()

    def _layout_key(self, connection: psycopg.Connection, layout: Layout) -> int:
        def find_or_make(text: str, digest: str) -> int:
            insert = "INSERT INTO layouts (digest, description) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            connection.execute(insert, (digest, text))
            row = connection.execute("SELECT layout FROM layouts WHERE digest = %s", (digest,)).fetchone()
            if row is None:
                raise SinkError(f"{self._url} does not show a row that was just written; is it a read-only replica?")
            return int(row[0])

        return self._layout_keys.key(layout, find_or_make)

    def _release(self) -> None:
        link, self._link = self._link, None
        self._layout_keys.forget()
        if link is not None:
            connection, watchdog = link
            watchdog.close()
            connection.close()


class PostgresSource(TrajectorySource):
    """Reads what was committed when a pass begins, a few rows at a time."""

    def __init__(self, url: str, settings: DatabaseSettings) -> None:
        self._psycopg = driver()
        self._url = without_password(url)
        self._target = url
        self._timeout_s = settings.connect_timeout_s
        self._is_closed = False
        self.report = ReadReport()
        try:
            self._connection = connect(url, self._timeout_s)
        except self._psycopg.Error as error:
            raise SinkError(
                f"cannot open {self._url}: {reason_of(url, error)}; {advice_on(url)}"
            ) from None  # the cause may quote a password
        try:
            row = self._connection.execute("SELECT version FROM relayrl_schema").fetchone()
            version = row[0] if row else 0
            missing_statements(POSTGRES, version, self._url)
            self._has_marks = version >= MARKS_SINCE
            missing = {} if version >= POSTGRES_STEPS_SINCE else BEFORE_STEPS | {"step_data": "''::bytea"}
            self._columns = ", ".join(missing.get(name, name) for name in (*HEADER, *DATA))
        except (self._psycopg.Error, ConfigError) as error:
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self._url} holds nothing: {reason_of(url, error)}") from error

    @property
    def url(self) -> str:
        return self._url

    def __iter__(self) -> Iterator[Trajectory]:
        return self._pass("true", ())

    def of_envs(self, env_ids: Collection[UUID], first_episode: int) -> Iterator[Trajectory]:
        return self._pass("env_id = ANY(%s) AND episode >= %s", (list(env_ids), first_episode))

    def _pass(self, condition: str, values: tuple[object, ...]) -> Iterator[Trajectory]:
        self._begin()
        self.report.num_abandoned = self._num_left_out()
        query = f"SELECT {self._columns} FROM trajectories WHERE {condition} AND {self._kept()}"
        try:
            # A pass has a connection of its own, so that several may run at the same time.
            with connect(self._target, self._timeout_s) as connection, connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                layouts = _layouts(connection)
                with connection.cursor("relayrl_trajectories", binary=True) as cursor:
                    cursor.itersize = _ROWS_PER_FETCH
                    for row in cursor.execute(f"{query} ORDER BY trajectory".encode(), values):
                        fields = dict(zip((*HEADER, *DATA), row, strict=True))
                        yield trajectory_of(fields, layouts[fields["layout"]])
        except (self._psycopg.Error, KeyError) as error:
            raise DecodeError(f"cannot read {self._url}: {reason_of(self._target, error)}") from error

    def count(self) -> SourceCount:
        self._begin()
        query = f"SELECT count(*), coalesce(sum(num_steps), 0)::bigint FROM trajectories WHERE {self._kept()}"
        row = self._connection.execute(query.encode()).fetchone()
        self.report.num_abandoned = self._num_left_out()
        return SourceCount(*row) if row else SourceCount(0, 0)

    def abandoned(self) -> frozenset[UUID]:
        rows = self._connection.execute("SELECT trajectory_id FROM abandoned") if self._has_marks else ()
        return frozenset(trajectory_id for (trajectory_id,) in rows)

    def _kept(self) -> str:
        """The condition on trajectories that a pass gives."""
        leaves_out = self._has_marks and not self.with_abandoned
        return "trajectory_id NOT IN (SELECT trajectory_id FROM abandoned)" if leaves_out else "true"

    def _num_left_out(self) -> int:
        if not self._has_marks or self.with_abandoned:
            return 0
        query = "SELECT count(*) FROM abandoned JOIN trajectories USING (trajectory_id)"
        row = self._connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    def layouts(self) -> tuple[Layout, ...]:
        self._begin()
        return tuple(_layouts(self._connection).values())

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def _begin(self) -> None:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()


def _layouts(connection: psycopg.Connection) -> dict[int, Layout]:
    rows = connection.execute("SELECT layout, description FROM layouts ORDER BY layout")
    return {key: layout_from_json(text) for key, text in rows}
