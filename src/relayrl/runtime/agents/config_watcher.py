"""Notices that the configuration file has changed: a thread that looks at it every so often.

A file that cannot be read or is wrong is refused with a log line, once per change, and the old configuration stays.

Not its job: knowing what a change means; it calls `apply(old, new)` with two valid configurations.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from relayrl.errors import ConfigError
from relayrl.runtime.agents.client_config import ClientConfig, read_client_config

_log = logging.getLogger("relayrl.runtime.agents.config_watcher")
JOIN_TIMEOUT_S = 10.0


class ConfigWatcher:
    """Polls one file. `apply` is called in the watcher's thread, or in the caller's of `check_now`."""

    def __init__(
        self, path: Path, present: ClientConfig, apply: Callable[[ClientConfig, ClientConfig], None], interval_s: float
    ) -> None:
        self.path, self._present, self._apply = path, present, apply
        self.interval_s = interval_s
        self._lock = threading.Lock()
        self._seen = _stamp(path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="relayrl-config", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; returns when the thread has ended."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)

    def check_now(self) -> bool:
        """Look at the file; gives whether a changed configuration was applied."""
        with self._lock:
            stamp = _stamp(self.path)
            if stamp == self._seen:
                return False
            self._seen = stamp
            try:
                new = read_client_config(self.path)
                self._apply(self._present, new)
            except ConfigError as error:
                _log.error(
                    "configuration refused, the old one stays", extra={"path": str(self.path), "why": str(error)}
                )
                return False
            self._present = new
            return True

    def _poll(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.check_now()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
