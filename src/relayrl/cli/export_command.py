"""`relayrl export`: a run's newest checkpoint as a file that runs anywhere."""

from __future__ import annotations

from pathlib import Path

from relayrl.engines.run_directory import RunDirectory
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.exported import ExportFormat


def run(path: Path, format_name: str, output: Path | None) -> list[Path]:
    """Write every policy of the run; gives the files."""
    formats = {file_format.value: file_format for file_format in ExportFormat}
    if format_name not in formats:
        raise UnknownNameError("format", format_name, formats)
    directory = RunDirectory(path)
    settings = directory.settings()

    from relayrl.engines.local import LocalEngine

    engine = LocalEngine(settings, directory, tensorboard=False)
    try:
        if not engine.resume():
            raise ConfigError(f"{path} has no checkpoint yet; let the run reach one, or finish it")
        return engine.export([formats[format_name]], output)
    finally:
        engine.close()
