"""Packages that register environments with Gymnasium when they are imported, found by the ids that users type.

An id is looked up in three places, and a package is imported only when an id asks for it:

- what is registered already: Gymnasium's own;
- packages that say of themselves that they register environments (entry points of the group `gymnasium.envs`);
- `PACKAGES`: packages that say nothing, by how their ids look.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import gymnasium

from relayrl.config.plugin_registry import PluginKind, plugin_names
from relayrl.errors import ConfigError, UnknownNameError

_log = logging.getLogger("relayrl.envs.adapters.gymnasium_packages")
ENTRY_POINTS = "gymnasium.envs"


@dataclass(frozen=True, slots=True)
class EnvPackage:
    """A package of environments: what to import, what to install, and what its ids look like."""

    module: str
    install: str
    ids: str
    """A regular expression."""


PACKAGES = (
    EnvPackage("ale_py", "relayrl[atari]", r"ALE/.*|\w+(NoFrameskip|Deterministic)-v[04]"),
    EnvPackage("minigrid", "minigrid", r"(MiniGrid|BabyAI)-.*"),
    EnvPackage(
        "highway_env", "highway-env", r"(highway|merge|roundabout|parking|intersection|racetrack|u-turn|exit)-.*"
    ),
    EnvPackage("miniworld", "miniworld", r"MiniWorld-.*"),
    EnvPackage(
        "gymnasium_robotics",
        "gymnasium-robotics",
        r"(Fetch|HandReach|HandManipulate|AntMaze|PointMaze|AdroitHand|FrankaKitchen).*",
    ),
    EnvPackage("metaworld", "metaworld", r"Meta-World/.*"),
    EnvPackage("mo_gymnasium", "mo-gymnasium", r"(mo-|deep-sea-treasure-|resource-gathering-|fruit-tree-|minecart-).*"),
    EnvPackage("lbforaging", "lbforaging", r"Foraging-.*"),
    EnvPackage("rware", "rware", r"rware-.*"),
    EnvPackage("shimmy", "shimmy[dm-control]", r"dm_control/.*"),
    EnvPackage("shimmy", "shimmy[bsuite]", r"bsuite/.*"),
    EnvPackage("flappy_bird_gymnasium", "flappy-bird-gymnasium", r"FlappyBird.*"),
    EnvPackage("PyFlyt.gym_envs", "pyflyt", r"PyFlyt/.*"),
    EnvPackage("vizdoom.gymnasium_wrapper", "vizdoom", r"Vizdoom.*"),
    EnvPackage("sumo_rl", "sumo-rl", r"sumo-rl-.*"),
    EnvPackage("gym_pusht", "gym-pusht", r"gym_pusht/.*"),
    EnvPackage("gym_aloha", "gym-aloha", r"gym_aloha/.*"),
    EnvPackage("gym_xarm", "gym-xarm", r"gym_xarm/.*"),
)
"""Packages without an entry point, by their ids."""
_REGISTER = ("register_highway_envs", "_register_highway_envs", "register_robotics_envs")
"""What some packages have to be asked to do after they are imported."""


class UnknownEnvironmentError(UnknownNameError):
    """An id that nothing here registers."""

    def __init__(self, env_id: str) -> None:
        super().__init__("environment", env_id, [*gymnasium.registry, *plugin_names(PluginKind.ENVIRONMENT)])
        hint = str(self) if self.nearest else f"unknown environment {env_id!r:.200}; see `relayrl list envs`"
        self.args = (f"{hint}; one of a package that RelayRL does not know is named with its module, as package:Id-v0",)


def require_registered(env_id: str) -> None:
    """Import what registers `env_id`; `ConfigError` says what to install, or what is near, where nothing here does."""
    if env_id in gymnasium.registry:
        return
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == "__root__" or env_id.startswith(f"{point.name}/"):
            _load_point(point)
    meant = [package for package in PACKAGES if re.fullmatch(package.ids, env_id)]
    for package in meant:
        if env_id not in gymnasium.registry and _is_installed(package.module):
            _load(package)
    if env_id in gymnasium.registry:
        return
    missing = next((package for package in meant if not _is_installed(package.module)), None)
    if missing is not None:
        raise ConfigError(
            f"environment {env_id!r} is one of {missing.module}, which is not installed: pip install '{missing.install}'"
        )
    import_installed()
    if env_id not in gymnasium.registry:
        raise UnknownEnvironmentError(env_id)


def import_installed() -> None:
    """Import every installed package of environments, so that all ids are registered; those that fail are logged."""
    for point in entry_points(group=ENTRY_POINTS):
        with _failure_logged():
            _load_point(point)
    for package in PACKAGES:
        if _is_installed(package.module):
            with _failure_logged():
                _load(package)


def _load_point(point: EntryPoint) -> None:
    with _explained(point.value):
        register = point.load()
        if callable(register):
            register()


def _load(package: EnvPackage) -> None:
    is_new = package.module not in sys.modules
    with _explained(package.module):
        module: Any = importlib.import_module(package.module)
        if is_new and package.module == "ale_py":
            module.ALEInterface.setLoggerMode(module.LoggerMode.Error)  # else every game prints a greeting
        has_registered = any(re.fullmatch(package.ids, env_id) for env_id in gymnasium.registry)
        for name in _REGISTER:
            if is_new and not has_registered and hasattr(module, name):
                getattr(module, name)()


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


@contextlib.contextmanager
def _failure_logged() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        _log.warning("%s; its environments are left out", error)


@contextlib.contextmanager
def _explained(module: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"importing {module!r} for its environments raised {type(error).__name__}: {reason:.300}"
        ) from error
