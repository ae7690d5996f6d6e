"""The fake simulator as an executable, for tests."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayrl
from relayrl import VectorEnvironment

SIMULATOR = Path(__file__).with_name("fake_simulator.py")


def executable(folder: Path) -> Path:
    """A file to launch, with the suffix that Unity gives it on Linux."""
    file = folder / "scene.x86_64"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SIMULATOR}" "$@"\n')
    file.chmod(0o755)
    return file


def free_port() -> int:
    """A port that nobody listens on; RelayRL goes on from it where somebody else is faster."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


class Scenes:
    """Makes environments of scenes, and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.opened = folder, list[VectorEnvironment]()
        self.name = f"unity:{executable(folder).with_suffix('')}"

    def options(self, scene: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        given = ["--scene", scene, *(str(each) for each in arguments)]
        return {"args": given, "base_port": free_port(), "log_dir": str(self.folder / "logs"), **options}

    def make(self, scene: str, *arguments: Any, num_envs: int = 1, **options: Any) -> VectorEnvironment:
        env = relayrl.make_env(self.name, num_envs=num_envs, **self.options(scene, *arguments, **options))
        self.opened.append(env)
        return env

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted((self.folder / "logs").glob("*.log")))


@pytest.fixture
def scenes(tmp_path: Path) -> Any:
    made = Scenes(tmp_path)
    yield made
    for env in made.opened:
        env.close()


def flags(scene: Scenes, *arguments: Any, **options: Any) -> list[str]:
    """The options of a scene for the command line."""
    import json

    return [
        part
        for name, value in scene.options(*arguments, **options).items()
        for part in ("--env-option", f"{name}={json.dumps(value)}")
    ]


def actions(env: VectorEnvironment, choose: Callable[[str], Any]) -> dict[str, Any]:
    """The same action for everybody of a group."""
    from relayrl.data.trees import allocate, map_tree

    found = {}
    for name, group in env.groups.items():
        rows = allocate(group.action_space, (env.num_envs, group.num_agents))
        map_tree(lambda leaf, own: np.copyto(leaf, own), rows, choose(name))
        found[name] = rows
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
