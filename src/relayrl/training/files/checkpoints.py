"""The `checkpoints/` directory of a run: one file per saved step, the newest K kept, and the best policy so far.

    step_000000010240.ckpt    everything that decides the future of the run
    best.ckpt                 the policies that did best in an evaluation during the run, with their step and return

A file appears under its name only when its bytes are on the disk, so a kill during a save leaves the one before. What is in a
file, and how damage is found, is `state_codec`'s job; what to save is the engine's.
"""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Any

from relayrl.errors import CheckpointError
from relayrl.training.files.atomic_files import TEMPORARY_SUFFIX, replacing
from relayrl.training.files.state_codec import CheckpointVersionError, read_state, write_state

logger = logging.getLogger(__name__)
BEST_NAME = "best.ckpt"
_NAME = re.compile(r"step_(\d+)\.ckpt")


class CheckpointStore:
    """Saves and finds checkpoints."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep
        self._damaged: set[Path] = set()

    @property
    def best_path(self) -> Path:
        """Where the best policies lie, if an evaluation has found any."""
        return self._directory / BEST_NAME

    def save(self, num_env_steps: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint, then drop damaged ones and the oldest beyond the limit."""
        path = self._directory / f"step_{num_env_steps:012d}.ckpt"
        with replacing(path) as file:
            write_state(file, {"num_env_steps": num_env_steps, "state": state})
        self._damaged.discard(path)
        for old in [*self._damaged, *self._whole_paths()[: -self._keep]]:
            old.unlink(missing_ok=True)
        self._damaged.clear()
        for left_over in self._directory.glob(f"*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                left_over.unlink()
        return path

    def save_best(self, num_env_steps: int, state: dict[str, Any]) -> Path:
        """Replace the best policies."""
        with replacing(self.best_path) as file:
            write_state(file, {"num_env_steps": num_env_steps, "state": state})
        return self.best_path

    def paths(self) -> list[Path]:
        """Checkpoints from oldest to newest, without `best`."""
        return sorted(p for p in self._directory.glob("*.ckpt") if _NAME.fullmatch(p.name))

    def _whole_paths(self) -> list[Path]:
        return [path for path in self.paths() if path not in self._damaged]

    def load_newest(self) -> tuple[int, dict[str, Any]] | None:
        """Steps and state of the newest whole checkpoint, or None if there is none; damaged ones are skipped with a warning."""
        errors: list[CheckpointError] = []
        for path in reversed(self.paths()):
            try:
                loaded = load_checkpoint(path)
            except CheckpointVersionError:
                raise
            except CheckpointError as error:
                self._damaged.add(path)
                errors.append(error)
                continue
            for skipped in errors:
                logger.warning("%s; going back to %s", skipped, path.name)
            return loaded
        if errors:
            raise CheckpointError(
                f"all {len(errors)} checkpoints in {self._directory} are damaged, the newest: {errors[0]}; "
                "put back a copy of one, or begin a new run in another folder"
            )
        return None


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Steps and state of one file."""
    content = read_state(path)
    return content["num_env_steps"], content["state"]
