"""Names of a public module that live elsewhere and are imported when they are first used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    module: str, homes: Mapping[str, str], moved: Mapping[str, str] | None = None, submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `module`, for names with the modules that define them.

    `moved` are former names with the public ones that replace them, `relayrl.extend.encode`. They work for one release, with
    a `DeprecationWarning`, and are not listed. `submodules` are imported in the same way.
    """
    former = moved or {}

    def get(name: str) -> Any:
        if name in former:
            place, _, now = former[name].rpartition(".")
            warnings.warn(
                f"{module}.{name} is {former[name]} now; the old name goes with the next release",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module(place), now)
        if name in submodules:
            return importlib.import_module(f"{module}.{name}")
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted([*homes, *submodules])
