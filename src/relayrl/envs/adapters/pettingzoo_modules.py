"""Finding the environments of PettingZoo and of libraries laid out like it, such as mpe2; what imports them.

Responsible for names and for what is missing. Not responsible for what the environments do (`pettingzoo_adapter`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
import warnings
from collections.abc import Iterator, Sequence
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


def usable_names(library: str) -> list[str]:
    """Those of them for which all packages are installed that their modules import at their top.

    The modules are read, not run: some of what they import brings down processes that have loaded other libraries.
    """
    spec = importlib.util.find_spec(library)
    roots = [] if spec is None else [Path(root).parent for root in spec.submodule_search_locations or ()]
    return [name for name in known_names(library) if _has_its_imports(f"{library}.{name}", library, roots, set())]


def _has_its_imports(module: str, library: str, roots: Sequence[Path], seen: set[str]) -> bool:
    """Whether what a module of the library imports is there; `seen` are modules that were looked at."""
    if module in seen:
        return True
    seen.add(module)
    file = next((each for root in roots for each in _files(root, module) if each.exists()), None)
    if file is None:
        return True  # a name inside a module, not a module
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return all(
        _has_its_imports(each, library, roots, seen)
        if each.partition(".")[0] == library
        else importlib.util.find_spec(each.partition(".")[0]) is not None
        for each in _imports(file, package)
    )


def _files(root: Path, module: str) -> tuple[Path, Path]:
    path = root.joinpath(*module.split("."))
    return path.with_name(f"{path.name}.py"), path / "__init__.py"


def _imports(file: Path, package: str) -> Iterator[str]:
    """What a module imports whenever it is imported itself: absolute names, of modules or of what is in them."""
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def load(library: str, name: str) -> Any:
    """The module of one environment."""
    known = known_names(library)
    if name not in known:
        raise UnknownNameError(f"{library} environment", name, known)
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 announces a registry to come in place of these modules, which 1.25 does not have yet.
            warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
            return importlib.import_module(f"{library}.{name}")
    except ImportError as error:
        raise missing_import(library, name, error) from error


def missing_import(library: str, name: str, error: ImportError) -> ConfigError:
    """What to install for an environment that needs more than its library."""
    family = name.rpartition(".")[0]
    extra = f"{library}[{family}]" if family else library
    return ConfigError(f"{library}:{name} cannot be imported ({error}); try: pip install '{extra}'")


def import_pettingzoo() -> Any:
    """The `pettingzoo` package itself, for its base classes."""
    try:
        return importlib.import_module("pettingzoo")
    except ImportError as error:
        raise MissingExtraError("a PettingZoo environment", EXTRA) from error
