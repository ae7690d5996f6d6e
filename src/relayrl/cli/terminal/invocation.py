"""Commands as they can be pasted: with the program's path where the shell would not find it, or would find another."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

_MODULES = {"relayrl": "relayrl", "tensorboard": "tensorboard.main"}


def command(program: str, *arguments: object) -> str:
    """A line for the shell that runs `program` of this Python's environment."""
    return " ".join([*_program(program), *(shlex.quote(str(argument)) for argument in arguments)])


def _program(name: str) -> list[str]:
    own, found = Path(sys.executable).parent / name, shutil.which(name)
    if not own.exists():
        return [shlex.quote(sys.executable), "-m", _MODULES[name]]
    if found is not None and os.path.samefile(own, found):
        return [name]
    near = os.path.relpath(own)
    return [shlex.quote(str(own) if near.startswith(os.pardir) else near)]
