"""Connections to PostgreSQL that never wait for ever, and errors that may be shown."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from relayrl.config.passwords import HIDDEN, hide_password_of, without_hidden
from relayrl.errors import MissingExtraError

if TYPE_CHECKING:
    import psycopg


def driver() -> ModuleType:
    """psycopg, which only these sinks need."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("a postgresql:// sink", "postgres") from error
    return psycopg


def reason_of(url: str, error: Exception) -> str:
    """What the driver says of `url`, on one line and without a password."""
    return " ".join(hide_password_of(url, str(error)).split())


def advice_on(url: str) -> str:
    """What to try when `url` cannot be opened."""
    if HIDDEN in url:
        return (
            "a run does not store passwords: give the URL with its password again, as --record or --from, "
            "or set PGPASSWORD, or use ~/.pgpass"
        )
    return "is the server running?"


def connect(url: str, timeout_s: float) -> psycopg.Connection:
    """A connection in autocommit mode whose transactions are durable when they are committed."""
    connection: psycopg.Connection = driver().connect(
        without_hidden(url),
        autocommit=True,
        connect_timeout=max(2, round(timeout_s)),  # libpq takes whole seconds, and no fewer than two
        application_name="relayrl",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    return connection


class Watchdog:
    """Shuts a connection's socket when something takes too long: a server that hangs then looks like one that died.

    The server's own statement_timeout does not help when it is the server, or the way to it, that has stopped. One thread for
    the connection's life, because starting one for each transaction costs milliseconds on a busy machine.
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self._link = socket.socket(fileno=os.dup(connection.fileno()))
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="relayrl-postgres-watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def limit(self, timeout_s: float) -> Iterator[None]:
        """The block has that long."""
        self._set(time.monotonic() + timeout_s)
        try:
            yield
        finally:
            self._set(None)

    def close(self) -> None:
        """The connection is not watched any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._link.close()

    def _set(self, deadline: float | None) -> None:
        with self._changed:
            self._deadline = deadline
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                remaining_s = None if self._deadline is None else self._deadline - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    with contextlib.suppress(OSError):  # it is gone already
                        self._link.shutdown(socket.SHUT_RDWR)
                    self._deadline = None
                    continue
                self._changed.wait(remaining_s)
