"""Which environments a file may name without the user's word.

`module:factory` imports and calls code, so a name from a run directory, a model file or a config is followed only where

- the user gave the same name, on the command line or in Python, or trusts the file (`--trust`, `trust=True`), or
- this program registered it itself, or
- it leads to installed code that is known to make environments: a registered Gymnasium id, a library with an adapter here, an
  installed plugin, or `package:Id-v0` of one of `ENVIRONMENT_PACKAGES` or of a package that declares plugins.

The same holds for wrappers around it: those of known, installed packages need no word, any other `module:callable` does.
And for a Ray cluster of another machine, and for what its collectors install.

Installed code is never taken from the current directory: a prepared directory could hold a module of any name. Not its job:
networks, losses and other parts, for which `engines.given_parts` has the same rule, and algorithms and sinks, which are plugins
only (`config.plugin_registry`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from relayrl.config.plugin_registry import PluginKind, current_env, plugin_environment, plugin_packages, plugin_values
from relayrl.engines.plugins import LOCAL_ENGINE
from relayrl.envs.adapters.gymnasium_adapter import MAKES_ANY_OTHER
from relayrl.envs.recipes import LIBRARIES, UNITY
from relayrl.envs.wrappers.wrapper_names import comes_from_here, is_installed_wrapper
from relayrl.errors import UntrustedError

if TYPE_CHECKING:
    from relayrl.engines.settings.run_settings import RunSettings

ENVIRONMENT_PACKAGES = (
    "ale_py",
    "gymnasium",
    "gymnasium_robotics",
    "highway_env",
    "lbforaging",
    "metaworld",
    "minigrid",
    "miniworld",
    "mo_gymnasium",
    "rware",
)
"""Packages that register Gymnasium environments when they are imported, and do nothing else."""

_MAX_SHOWN = 200


def require_trusted(env: str, source: Path, *, named: Collection[str | None], trust: bool, how: str) -> None:
    """Raise `ConfigError` unless `env`, which `source` names, may be made; `how` says what the user would do then."""
    given = [current_env(name) for name in named if name is not None]
    if trust or current_env(env) in given or is_installed_environment(env):
        return
    shown = (env if env.isprintable() else ascii(env))[:_MAX_SHOWN]
    module, colon, name = env.partition(":")
    if colon and (module == "__main__" or "<" in name):
        raise UntrustedError(
            f"{source} names the environment {shown}, code of the program that trained the run; pass what makes it, as in "
            "load_run(path, env=…) or train(env=…, run_dir=…, resume=True)"
        )
    raise UntrustedError(
        f"{source} names the environment {shown}, which runs code of that name; if you trust it, {how.format(shown)}"
    )


def require_trusted_wrappers(
    wrappers: Iterable[str], source: Path, *, named: Collection[str], trust: bool, how: str
) -> None:
    """Raise `UntrustedError` unless the wrappers that `source` names may be applied; `how` as for `require_trusted`."""
    for wrapper in wrappers:
        if not (trust or wrapper in named or is_installed_wrapper(wrapper)):
            shown = (wrapper if wrapper.isprintable() else ascii(wrapper))[:_MAX_SHOWN]
            raise UntrustedError(
                f"{source} names the wrapper {shown}, which runs code of that name; if you trust it, {how.format(shown)}"
            )


def require_trusted_cluster(settings: RunSettings, source: Path, *, named: Collection[str], trust: bool) -> None:
    """Raise `UntrustedError` where `source` sends the run to a cluster elsewhere, or says what collectors install: whoever has
    that cluster, or what is installed, runs code in the run's name. `named` are the settings that the user gave."""
    cluster = settings.cluster
    if trust or settings.engine == LOCAL_ENGINE:
        return
    is_given = {name: {name, f"cluster.{name}"} & set(named) for name in ("address", "runtime_env")}
    if cluster.address not in (None, "auto") and not is_given["address"]:
        raise UntrustedError(
            f"{source} names the Ray cluster {cluster.address!r:.200}, which runs code in this process; if you trust it, give "
            "it with --address, or add --trust"
        )
    if cluster.runtime_env and not is_given["runtime_env"]:
        raise UntrustedError(
            f"{source} names a cluster.runtime_env, which installs and runs code; if you trust it, give it with --set, or add "
            "--trust"
        )


def is_installed_environment(env: str) -> bool:
    """Whether a file may name `env` without the user's word."""
    made_by = plugin_environment(env)
    if not isinstance(made_by, str):
        return True  # the program that runs has registered it
    module, colon, name = made_by.partition(":")
    if not colon:
        return module not in MAKES_ANY_OTHER
    package = module.partition(".")[0]
    if module == "native":
        return True
    if module == UNITY:
        return False  # it launches a program, or listens on a port
    known = (
        module in LIBRARIES
        or made_by in plugin_values(PluginKind.ENVIRONMENT)
        # A factory could be any function of the package, also one that imports what its options say: only ids.
        or (package in (*ENVIRONMENT_PACKAGES, *plugin_packages()) and re.fullmatch(r"[\w/.-]+-v\d+", name) is not None)
    )
    return known and not comes_from_here(package)
