"""The folder of a run: what lies where, and when it may be written to."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

from relayrl.engines.run_settings import RunSettings, read_settings_file
from relayrl.errors import ConfigError
from relayrl.models.exported import ExportFormat
from relayrl.training.atomic_files import DiskError, write_whole


class RunDirectory:
    """Paths inside a run's folder; opening decides whether a run may begin or go on there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.checkpoints = path / "checkpoints"
        self.progress = path / "progress.csv"
        self.log = path / "run.log"
        self.result = path / "result.json"
        self._made: list[Path] = []

    @classmethod
    def default_path(cls, settings: RunSettings) -> Path:
        """`runs/<env>-<algo>-seed<seed>-<time>`."""
        name = settings.env.replace("/", "_").replace(":", "_")
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        return Path("runs") / f"{name}-{settings.algo}-seed{settings.seed}-{stamp}"

    def create(self, settings: RunSettings) -> None:
        """Begin a run here; a folder that already holds one is refused."""
        if self.config.exists():
            raise ConfigError(
                f"{self.path} already holds a run; add --resume to continue it, or choose another --run-dir"
            )
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_settings(settings)
        except (OSError, DiskError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            reason = cause.strerror if isinstance(cause, OSError) else error
            raise ConfigError(f"cannot write run directory {self.path}: {reason}; choose another --run-dir") from error

    def discard(self) -> None:
        """Undo `create` for a run that was refused before its first step, so that the same folder can be asked for again."""
        for file in (self.config, self.log):
            file.unlink(missing_ok=True)
        for folder in self._made:
            if any(folder.iterdir()):
                return
            folder.rmdir()

    def write_settings(self, settings: RunSettings) -> None:
        """Make `settings` those of the run that lies here."""
        write_whole(self.config, settings.to_yaml().encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Train here alone: a second process that tries is refused. The system releases the lock however we end."""
        try:
            import fcntl
        except ImportError:
            yield
            return
        with (self.path / "run.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"another process is training in {self.path}; wait for it, or end it") from error
            yield

    def require(self) -> Path:
        """The config of the run that lies here."""
        if not self.config.exists():
            raise ConfigError(f"{self.path} holds no run (no config.yaml); train one with: relayrl train CartPole-v1")
        return self.config

    def best_checkpoint(self) -> Path:
        """The policies that did best in an evaluation during the run."""
        from relayrl.training.checkpoints import BEST_NAME

        path = self.checkpoints / BEST_NAME
        if not path.exists():
            raise ConfigError(
                f"{self.path} has no best policies; train with evaluations, as in: --set evaluation.interval=10000"
            )
        return path

    def settings(self) -> RunSettings:
        """The settings of the run that lies here."""
        from relayrl.config.settings import parse_settings

        return parse_settings(RunSettings, read_settings_file(self.require()))

    def model(self, group: str, num_groups: int, file_format: ExportFormat) -> Path:
        """`model.onnx`, or `model.<group>.onnx` where a run has several policies."""
        stem = "model" if num_groups == 1 else f"model.{group}"
        return self.path / f"{stem}{file_format.suffix}"

    def models(self) -> list[Path]:
        """Exported ONNX policies of this run."""
        return sorted(self.path.glob("model*.onnx"))
