"""`relayrl export`: a run's newest checkpoint as a file that runs anywhere."""

from __future__ import annotations

from pathlib import Path

from relayrl.api import load_run
from relayrl.errors import UnknownNameError
from relayrl.models.exports.exported import ExportFormat


def run(path: Path, format_name: str, output: Path | None, *, best: bool, env: str | None, trust: bool) -> list[Path]:
    """Write every policy of the run; gives the files."""
    formats = [file_format.value for file_format in ExportFormat]
    if format_name not in formats:
        raise UnknownNameError("format", format_name, formats)
    return load_run(path, env=env, trust=trust).export(output, file_format=format_name, best=best)
