"""Packages of environments that tests here run where they are installed: which there are, and which must be."""

from __future__ import annotations

import importlib.util
import os

import pytest

REQUIRED = {"lbforaging": "lbforaging", "minigrid": "minigrid", "shimmy": "shimmy"}
"""Modules and packages that `make test` installs (extra `dev`)."""
OPTIONAL = {
    "rware": "rware",
    "mo_gymnasium": "mo-gymnasium",
    "gymnasium_robotics": "gymnasium-robotics",
    "dm_control": "dm-control",
    "bsuite": "bsuite",
    "pyspiel": "open-spiel",
    "envpool": "envpool",
}
"""Larger ones, or ones that do not go together with `dev`; install them beside it to have their tests run."""


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def absent() -> list[str]:
    """Packages whose tests are skipped here."""
    return [package for module, package in {**REQUIRED, **OPTIONAL}.items() if not is_installed(module)]


def needs(module: str) -> pytest.MarkDecorator:
    """Skip a test, by name of the package, where it is not installed."""
    package = {**REQUIRED, **OPTIONAL}[module]
    return pytest.mark.skipif(not is_installed(module), reason=f"{package} is not installed")


os.environ.setdefault("MUJOCO_GL", "disable")  # dm_control looks for a display otherwise
