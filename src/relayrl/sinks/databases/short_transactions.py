"""Short transactions on SQLite or PostgreSQL, for state that is no trajectory: leases, results, plans.

Statements are written once, with `?` for values. Transactions of one place come one after the other, and what one reads
stays true until it commits: SQLite locks the file, PostgreSQL takes an advisory lock. After a lost connection the work is
done again, so it must be such that doing it twice is doing it once.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from relayrl.config.passwords import without_password
from relayrl.errors import SinkError
from relayrl.sinks.databases.postgres_connection import Watchdog, advice_on, connect, driver, reason_of
from relayrl.sinks.databases.retries import BackOff
from relayrl.sinks.sink_settings import DatabaseSettings

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
Execute = Callable[..., list[Sequence[Any]]]
"""`execute(statement, *values)` gives the rows of a statement."""
_LOCK = 0x52656C6179  # "Relay"


class ShortTransactions(ABC):
    """A database, and work on it that is committed as a whole or not at all."""

    def __init__(self, settings: DatabaseSettings | None = None) -> None:
        self._settings = settings or DatabaseSettings()

    @abstractmethod
    def run(self, work: Callable[[Execute], T]) -> T:
        """Do `work` in a transaction; `SinkError` where the database cannot be reached before the deadline."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class SqliteTransactions(ShortTransactions):
    """A file; `synchronous = FULL`, so that a commit survives a loss of power."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            path, timeout=self._settings.retry_deadline_s, isolation_level=None, check_same_thread=False
        )
        back_off = BackOff(self._settings)
        while True:
            try:
                self._connection.execute("PRAGMA trusted_schema = OFF")
                self._connection.execute(
                    "PRAGMA journal_mode = WAL"
                )  # busy at once where another process does the same
                self._connection.execute("PRAGMA synchronous = FULL")
                return
            except sqlite3.Error as error:
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or not back_off.wait():
                    self.close()
                    raise SinkError(f"cannot open {path}: {error}") from error

    def run(self, work: Callable[[Execute], T]) -> T:
        def execute(statement: str, *values: object) -> list[Sequence[Any]]:
            return self._connection.execute(statement, values).fetchall()

        try:
            execute("BEGIN IMMEDIATE")
            try:
                result = work(execute)
                execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
        except sqlite3.Error as error:
            raise SinkError(f"cannot use {self._path}: {error}") from error
        return result

    def close(self) -> None:
        self._connection.close()


class PostgresTransactions(ShortTransactions):
    """A server, asked again after a lost connection until the deadline of the settings."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._link: tuple[psycopg.Connection, Watchdog] | None = None
        self._psycopg = driver()
        try:
            self._try(
                lambda execute: execute("SELECT 1")
            )  # a server that is not there is no reason to wait at the start
        except self._psycopg.Error as error:
            raise self._explained(error) from None  # the cause may quote a password

    def run(self, work: Callable[[Execute], T]) -> T:
        back_off = BackOff(self._settings)
        lost = (self._psycopg.OperationalError, self._psycopg.InterfaceError)
        while True:
            try:
                return self._try(work)
            except self._psycopg.Error as error:
                self.close()
                if not isinstance(error, lost) or not back_off.wait():
                    raise self._explained(error) from None

    def _explained(self, error: Exception) -> SinkError:
        return SinkError(
            f"cannot use {without_password(self._url)}: {reason_of(self._url, error)}; {advice_on(self._url)}"
        )

    def _try(self, work: Callable[[Execute], T]) -> T:
        if self._link is None:
            made = connect(self._url, self._settings.connect_timeout_s)
            self._link = (made, Watchdog(made))
        connection, watchdog = self._link

        def execute(statement: str, *values: object) -> list[Sequence[Any]]:
            cursor = connection.execute(statement.replace("?", "%s").encode(), values)
            return list(cursor.fetchall()) if cursor.description else []

        with watchdog.limit(self._settings.statement_timeout_s), connection.transaction():
            execute("SELECT pg_advisory_xact_lock(?)", _LOCK)
            return work(execute)

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            connection, watchdog = link
            watchdog.close()
            with suppress(self._psycopg.Error):
                connection.close()


def open_transactions(url: str) -> ShortTransactions:
    """`sqlite:FILE`, or `postgresql://…`."""
    scheme, _, rest = url.partition(":")
    return SqliteTransactions(Path(rest)) if scheme == "sqlite" else PostgresTransactions(url)
