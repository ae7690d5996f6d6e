"""The run directory: its files, and when they may be written."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from relayrl.config.plugin_registry import explaining_registrations
from relayrl.config.settings_text import read_mapping
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError, DiskError
from relayrl.models.exports.exported import ExportFormat
from relayrl.training.files.atomic_files import write_whole
from relayrl.training.files.file_names import file_name_part

_WRITTEN = (
    "config.yaml",
    "progress.csv",
    "run.log",
    "result.json",
    "model*.onnx",
    "model*.pt",
    "events.out.tfevents.*",
)
"""Files of a run beside its checkpoints."""


class RunDirectory:
    """Paths inside a run directory; opening decides whether a run may begin or resume there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.checkpoints = path / "checkpoints"
        self.progress = path / "progress.csv"
        self.log = path / "run.log"
        self.videos = path / "videos"
        self.result = path / "result.json"
        self._lock_path = path / "run.lock"
        self._lock: TextIO | None = None
        self._made: list[Path] = []

    @classmethod
    def make_default(cls, settings: RunSettings) -> RunDirectory:
        """A new directory `runs/<env>-<algo>-seed<seed>-<time>`, with a number behind it where another run has that name."""
        name = file_name_part(settings.env.replace("/", "_").replace(":", "_"))
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        path = Path("runs") / f"{name}-{file_name_part(settings.algo)}-seed{settings.seed}-{stamp}"
        names = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
        return next(directory for directory in map(cls, names) if directory._make())

    def create(self, settings: RunSettings) -> None:
        """Begin a run here; raises where the directory holds one. Of several processes that try, one succeeds."""
        self.require_no_run()
        with contextlib.nullcontext() if self.is_locked else self.locked(), self._explained():
            self.require_no_run()  # whoever had the lock before may have begun one
            self.write_settings(settings)

    def require_no_run(self) -> None:
        """Raise where the directory holds a run."""
        if self.config.exists():
            raise ConfigError(
                f"{self.path} already holds a run; add --resume to continue it, or choose another --run-dir"
            )

    def _make(self) -> bool:
        """Create the directory; False if it is there already."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir()
            except FileExistsError:
                if not self.path.is_dir():
                    raise
                return False
        self._made = missing
        return True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """The system's error for a directory that cannot be written, as a `ConfigError`."""
        try:
            yield
        except (OSError, DiskError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            reason = cause.strerror if isinstance(cause, OSError) else error
            raise ConfigError(
                f"cannot write run directory {self.path!s:.200}: {reason}; choose another --run-dir"
            ) from error

    def discard(self) -> None:
        """Undo `create` for a run that was refused before its first step, so that the same directory can be used again."""
        for file in (self.config, self.log, *([self._lock_path] if self._made else [])):
            file.unlink(missing_ok=True)
        for folder in self._made:
            if any(folder.iterdir()):
                return
            folder.rmdir()

    def clear(self) -> None:
        """Remove the run that lies here, whose lock is held: files that runs write, and nothing else."""
        with self._explained():
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for pattern in _WRITTEN:
                for file in self.path.glob(pattern):
                    file.unlink()

    def write_settings(self, settings: RunSettings) -> None:
        """Make `settings` those of the run that lies here."""
        write_whole(self.config, settings.to_yaml().encode())

    @property
    def is_locked(self) -> bool:
        """Whether this object holds the lock of the directory."""
        return self._lock is not None

    def lock(self) -> None:
        """Work here alone until `release`: whoever else tries is refused. The system releases the lock however we end."""
        self._make()
        with self._explained():
            file = self._lock_path.open("a")
        try:
            self._take(file)
        except BaseException:
            file.close()
            raise
        self._lock = file

    def _take(self, file: TextIO) -> None:
        try:
            import fcntl
        except ImportError:
            return
        refusal = f"another process is training in {self.path}; wait for it, or end it"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(refusal) from error
        # Its holder may have discarded the directory since the file was opened: that lock guards nothing any more.
        if not self._lock_path.exists() or not os.path.samestat(os.fstat(file.fileno()), self._lock_path.stat()):
            raise ConfigError(refusal)

    def release(self) -> None:
        """Let others work here; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """`lock` and `release`."""
        self.lock()
        try:
            yield
        finally:
            self.release()

    def require(self) -> Path:
        """The config of the run that lies here."""
        if not self.config.exists():
            raise ConfigError(f"{self.path} holds no run (no config.yaml); train one with: relayrl train CartPole-v1")
        return self.config

    def best_checkpoint(self) -> Path:
        """The policies that did best in an evaluation during the run."""
        from relayrl.training.files.checkpoints import BEST_NAME

        path = self.checkpoints / BEST_NAME
        if not path.exists():
            raise ConfigError(
                f"{self.path} has no best policies; train with evaluations, as in: --set evaluation.interval=10000"
            )
        return path

    def settings(self) -> RunSettings:
        """The settings of the run that lies here."""
        from relayrl.config.settings import parse_settings

        with explaining_registrations(self.path):
            return parse_settings(RunSettings, read_mapping(self.require()))

    def model(self, group: str, num_groups: int, file_format: ExportFormat) -> Path:
        """`model.onnx`, or `model.<group>.onnx` where a run has several policies; unusual characters percent-encoded."""
        stem = "model" if num_groups == 1 else f"model.{file_name_part(group)}"
        return self.path / f"{stem}{file_format.suffix}"

    def models(self) -> list[Path]:
        """Exported ONNX policies of this run."""
        return sorted(self.path.glob("model*.onnx"))
