"""Launches a Unity executable and ends it, with whatever it has started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relayrl.errors import ConfigError

_SUFFIXES = ("", ".x86_64", ".x86", ".exe")
_MAX_SHOWN = 200


def find_executable(path: str) -> Path:
    """The file to launch, also where `path` leaves out its suffix or names an application of macOS; else `ConfigError`."""
    base = Path(path).expanduser()
    found = [file for suffix in _SUFFIXES if (file := base.with_name(base.name + suffix)).is_file()]
    for bundle in (base, base.with_name(base.name + ".app")):
        if bundle.suffix == ".app":
            found += sorted((bundle / "Contents" / "MacOS").glob("*"))
    if not found:
        tried = ", ".join(f"{base.name}{suffix}" for suffix in (*_SUFFIXES, ".app"))
        raise ConfigError(f"unity:{path}: there is no executable; tried {tried} in {base.parent.absolute()}")
    if not os.access(found[0], os.X_OK):
        raise ConfigError(f"unity:{path}: {found[0]} is not executable; chmod +x {found[0]}")
    return found[0].absolute()


class SimulatorProcess:
    """A running simulator, in a process group of its own; its log lies in a folder that goes with a clean end."""

    def __init__(self, executable: Path, port: int, arguments: Sequence[str], log_dir: str | None) -> None:
        self._keeps_logs, self._is_closed = log_dir is not None, False
        self._folder = Path(tempfile.mkdtemp(prefix="relayrl-unity-")) if log_dir is None else Path(log_dir).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log, self._output = self._folder / f"Player-{port}.log", self._folder / f"Player-{port}.out"
        command = [str(executable), "--mlagents-port", str(port), "-logFile", str(self._log), *arguments]
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise ConfigError(f"{executable} cannot be launched: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def find_end(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return f"its process {how}"

    def describe_log(self) -> str:
        """Where to read on: the log and what was printed, each with its last line."""
        shown = []
        for what, file in (("log", self._log), ("output", self._output)):
            lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
            if lines:
                shown.append(f"{what} {file}, which ends with: {lines[-1][:_MAX_SHOWN]}")
        return "; ".join(shown) or f"log {self._log}, which is empty"

    def close(self, timeout_s: float, *, keep_logs: bool = False) -> None:
        """Wait for an end of its own, then kill what is left of its process group; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if not (keep_logs or self._keeps_logs):
            shutil.rmtree(self._folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
