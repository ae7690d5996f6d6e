"""`ModelModule`: a policy that has left training, as a file, its bytes, and what it says of itself.

Not here: how the file is made (`relayrl.models.exports.export`).
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

from relayrl.errors import ConfigError
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.training.files.atomic_files import write_whole


@dataclass(frozen=True, slots=True)
class ModelModule:
    """One policy of one version."""

    path: Path
    file_format: ExportFormat
    metadata: PolicyMetadata
    content: bytes = field(repr=False)

    def actor(self) -> ExportedActor:
        """Acts with the ONNX model, without torch."""
        if self.file_format is not ExportFormat.ONNX:
            raise ConfigError(f"{self.path.name} is TorchScript; use script(), or acquire_model('onnx')")
        return ExportedActor(self.path)

    def script(self) -> torch.jit.ScriptModule:
        """The TorchScript module: observations in, `(distribution, action[, value])` out."""
        if self.file_format is not ExportFormat.TORCHSCRIPT:
            raise ConfigError(f"{self.path.name} is ONNX; use actor(), or acquire_model('torchscript')")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch deprecates the format as a whole
            module: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(self.content))  # type: ignore[no-untyped-call]
        return module

    def save(self, path: Path | str) -> Path:
        """Write the same file elsewhere, whole or not at all."""
        write_whole(Path(path), self.content)
        return Path(path)
