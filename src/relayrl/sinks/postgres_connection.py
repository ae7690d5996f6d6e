"""Connections to PostgreSQL that never wait for ever, and URLs that may be shown."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

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


def without_password(url: str) -> str:
    """The URL with `***` for the password, where it has one."""
    url = re.sub(r"(://[^:@/?]*:)[^@/?]+@", r"\1***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


def connect(url: str, timeout_s: float) -> psycopg.Connection:
    """A connection in autocommit mode whose transactions are durable when they are committed."""
    connection: psycopg.Connection = driver().connect(
        url,
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


@contextlib.contextmanager
def cut_after(connection: psycopg.Connection, timeout_s: float) -> Iterator[None]:
    """Shuts the socket when the block has not ended in time: a server that hangs looks like one that died.

    The server's own statement_timeout does not help when it is the server, or the way to it, that has stopped.
    """
    descriptor = os.dup(connection.fileno())
    with socket.socket(fileno=descriptor) as link:
        timer = threading.Timer(timeout_s, _shut, (link,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _shut(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
