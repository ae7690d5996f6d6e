"""One virtual environment per peer, kept in `.venvs` and made again only when its requirements change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE / ".venvs"
CONSTRAINTS = HERE / "constraints.txt"
INSTALL_TIMEOUT_S = 1800


class InstallError(Exception):
    """A peer cannot be installed; the message is pip's last line."""


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is installed first where it is missing or out of date."""
    folder = VENVS / name
    wanted = CONSTRAINTS.read_text() + requirements(name).read_text()
    stamp, python = folder / "installed.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {name}", flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-c", str(CONSTRAINTS), "-r", str(requirements(name))])
    stamp.write_text(wanted)
    return python


def requirements(name: str) -> Path:
    """The requirement file of a peer."""
    return HERE / "requirements" / f"{name}.txt"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InstallError(lines[-1] if lines else f"exit code {done.returncode}")
