"""Whether the compiled kernels are there, and how many threads they may use.

They are optional (`setup.py`): without a compiler at installation, or with `RELAYRL_COMPILED=off`, everything runs in NumPy.
`RELAYRL_COMPILED` may also name one of the machine's instruction sets; the default is the best one.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from types import ModuleType

from relayrl.errors import ConfigError

VARIABLE = "RELAYRL_COMPILED"
OFF = "off"
MAX_THREADS = 2
"""The actor and the critic learn side by side; there is no third thing to do."""

try:
    from relayrl.compiled import _kernels as _found
except ImportError:
    _module: ModuleType | None = None
else:
    _module = _found

_threads_limit = MAX_THREADS


def kernels() -> ModuleType | None:
    """The compiled kernels, or None where NumPy is to be used."""
    return _switched_to(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=1)  # one answer, for as long as nobody asks for anything else
def _switched_to(asked: str) -> ModuleType | None:
    if _module is None or asked == OFF:
        return None
    available = _module.instruction_sets()
    name = asked or available[0]
    if name not in available:
        raise ConfigError(f"{VARIABLE}={asked}: this machine has {', '.join(available)}; or write {OFF}")
    _module.use_instruction_set(name)
    return _module


def limit_threads(count: int | None) -> None:
    """Let kernels use at most `count` threads; None: as many as help. Results do not depend on it."""
    global _threads_limit
    _threads_limit = MAX_THREADS if count is None else count


def num_threads() -> int:
    """Threads that a kernel may use: one for each core that this process may run on, and no more than help."""
    return max(1, min(MAX_THREADS, _threads_limit, num_cores()))


@cache
def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> str:
    """One line for people: what acting and learning on the CPU run on."""
    if kernels() is None:
        return (
            f"NumPy ({VARIABLE}={OFF})" if _module is not None else "NumPy (no compiled kernels in this installation)"
        )
    name = os.environ.get(VARIABLE) or _module.instruction_sets()[0]  # type: ignore[union-attr]
    return f"compiled kernels ({name}, {num_threads()} thread{'s' if num_threads() > 1 else ''})"
