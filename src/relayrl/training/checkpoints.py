"""Checkpoints: one file per saved step, written whole or not at all, the newest K kept.

A file appears under its name only after its bytes are on the disk, so a kill during a save leaves the one before. Files are
loaded as data (`weights_only`), never as code.
"""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from relayrl.errors import CheckpointError

CHECKPOINT_VERSION = 1
_NAME = re.compile(r"step_(\d+)\.ckpt")


class CheckpointStore:
    """The `checkpoints/` folder of a run."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep

    def save(self, num_env_steps: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint and drop the oldest ones beyond the limit."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"step_{num_env_steps:012d}.ckpt"
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                torch.save({"version": CHECKPOINT_VERSION, "num_env_steps": num_env_steps, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise CheckpointError(
                f"cannot write checkpoint {path}: {error.strerror}; the one before is intact"
            ) from error
        for old in self.paths()[: -self._keep]:
            old.unlink()
        return path

    def paths(self) -> list[Path]:
        """Checkpoints from oldest to newest."""
        return sorted(p for p in self._directory.glob("*.ckpt") if _NAME.fullmatch(p.name))

    def load_newest(self) -> tuple[int, dict[str, Any]] | None:
        """Steps and state of the newest checkpoint, or None where there is none."""
        paths = self.paths()
        if not paths:
            return None
        try:
            content = torch.load(paths[-1], weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"checkpoint {paths[-1]} is damaged ({error}); delete it to use the one before"
            ) from error
        if content["version"] != CHECKPOINT_VERSION:
            raise CheckpointError(f"checkpoint {paths[-1]} has version {content['version']}, not {CHECKPOINT_VERSION}")
        return content["num_env_steps"], content["state"]
