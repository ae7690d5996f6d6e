"""Whether the compiled kernels are there, and how many threads they may use.

They are optional (`setup.py`): without a compiler at installation, or with `RELAYRL_COMPILED=off`, everything runs in NumPy.
`RELAYRL_COMPILED` may also name one of the machine's instruction sets; the default is the best one. Kernels that fail their
`self_check` are left out.
"""

from __future__ import annotations

import logging
import os
from functools import cache, lru_cache
from types import ModuleType

from relayrl.errors import ConfigError

VARIABLE = "RELAYRL_COMPILED"
OFF = "off"
MAX_THREADS = 2
"""The actor and the critic learn side by side; there is no third thing to do."""

REBUILD = (
    "install a C compiler (Debian: apt-get install gcc) and run pip install --force-reinstall --no-cache-dir --no-deps "
    f"relayrl, or make kernels in a checkout; {VARIABLE}={OFF} does without them and without this warning"
)

_module: ModuleType | None = None
_absence = "there are no compiled kernels in this installation"
try:
    import relayrl.compiled._kernels as _found
except ModuleNotFoundError:
    pass
except ImportError as error:
    _absence = f"the compiled kernels cannot be loaded ({error})"
else:
    _module = _found

_threads_limit = MAX_THREADS
_log = logging.getLogger(__name__)


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
    return _module if _checked(name) is None else None


@cache
def _checked(name: str) -> str | None:
    """What the kernels of the instruction set in use, which is `name`, get wrong; None where all is well."""
    from relayrl.compiled.self_check import fault_of

    assert _module is not None
    return fault_of(_module)


def missing() -> str | None:
    """Why there are no kernels; None where there are, or where they are switched off."""
    asked = os.environ.get(VARIABLE, "")
    if asked == OFF or kernels() is not None:
        return None
    if _module is None:
        return _absence
    name = asked or _module.instruction_sets()[0]
    return f"the compiled kernels ({name}) are not used: {_checked(name)}"


@cache
def warn_if_missing() -> None:
    """Log, once a process, that NumPy does the kernels' work though nobody asked for that, and what to do about it."""
    if (fault := missing()) is not None:
        _log.warning("%s; training and acting on the CPU take longer: %s", fault, REBUILD)


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
        return f"NumPy ({missing() or f'{VARIABLE}={OFF}'})"
    name = os.environ.get(VARIABLE) or _module.instruction_sets()[0]  # type: ignore[union-attr]
    return f"compiled kernels ({name}, {num_threads()} thread{'s' if num_threads() > 1 else ''})"
