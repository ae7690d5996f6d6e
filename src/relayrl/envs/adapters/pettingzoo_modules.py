"""Finding the environments of PettingZoo and of libraries laid out like it, such as mpe2; what imports them.

Responsible for names and for what is missing. Not responsible for what the environments do (`pettingzoo_adapter`).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import warnings
from pathlib import Path
from typing import Any

from relayrl.errors import ConfigError, MissingExtraError, UnknownNameError

EXTRA = "pettingzoo"


def known_names(library: str) -> list[str]:
    """The environments of a PettingZoo-style library: its modules `name_vN`, found without importing them."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.submodule_search_locations is None:
        raise MissingExtraError(f"{library} environments", EXTRA)
    names = []
    for root in spec.submodule_search_locations:
        for entry in pkgutil.iter_modules([root]):
            family = pkgutil.iter_modules([str(Path(root) / entry.name)]) if entry.ispkg else ()
            names += [entry.name, *(f"{entry.name}.{module.name}" for module in family)]
    return sorted(name for name in names if re.search(r"_v\d+$", name))


def load(library: str, name: str) -> Any:
    """The module of one environment."""
    known = known_names(library)
    if name not in known:
        raise UnknownNameError(f"{library} environment", name, known)
    family = name.rpartition(".")[0]
    extra = f"{library}[{family}]" if family else library
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 announces a registry to come in place of these modules, which 1.25 does not have yet.
            warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
            return importlib.import_module(f"{library}.{name}")
    except ImportError as error:
        raise ConfigError(f"{library}:{name} cannot be imported ({error}); try: pip install '{extra}'") from error


def import_pettingzoo() -> Any:
    """The `pettingzoo` package itself, for its base classes."""
    try:
        return importlib.import_module("pettingzoo")
    except ImportError as error:
        raise MissingExtraError("a PettingZoo environment", EXTRA) from error
