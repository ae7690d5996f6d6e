"""Whether the compiled kernels are there, and how many threads they may use.

They are optional (`setup.py`): without a compiler at installation, or with `RELAYRL_COMPILED=off`, torch does their work.
`RELAYRL_COMPILED` may also name one of the machine's instruction sets; the default is the best one. Kernels that fail their
`self_check` are left out. `RELAYRL_THREADS` is the number of threads; the default is one for each core that the process may
use.
"""

from __future__ import annotations

import logging
import os
from functools import cache, lru_cache
from types import ModuleType

from relayrl.compiled.usable_cores import num_cores
from relayrl.errors import ConfigError

VARIABLE = "RELAYRL_COMPILED"
OFF = "off"
THREADS_VARIABLE = "RELAYRL_THREADS"
MAX_THREADS = 64
"""Of the kernels' thread pool."""

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

_num_threads: int | None = None
_log = logging.getLogger(__name__)


def kernels() -> ModuleType | None:
    """The compiled kernels, or None where torch and NumPy do without."""
    return _switched_to(os.environ.get(VARIABLE, ""))


@cache
def row_kernels() -> ModuleType | None:
    """The same for code that moves rows, as the process first found them: it asks several times for every block."""
    return kernels()


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
    """Log, once a process, that torch does the kernels' work though nobody asked for that, and what to do about it."""
    if (fault := missing()) is not None:
        _log.warning("%s; training and acting on the CPU take longer: %s", fault, REBUILD)


def set_num_threads(count: int | None) -> None:
    """Let kernels use `count` threads, whatever the cores; None: `RELAYRL_THREADS` or the cores decide."""
    global _num_threads
    _num_threads = count


def num_threads() -> int:
    """Threads that a kernel may use; each call takes as many as its work is worth. Results do not depend on it."""
    return _num_threads or _default_num_threads()


@cache
def _default_num_threads() -> int:
    asked = os.environ.get(THREADS_VARIABLE, "")
    if not asked:
        return min(MAX_THREADS, num_cores())
    if not asked.isdecimal() or not 1 <= int(asked) <= MAX_THREADS:
        raise ConfigError(f"{THREADS_VARIABLE}={asked}: a number from 1 to {MAX_THREADS}, or unset for one a core")
    return int(asked)


def describe() -> str:
    """One line for people: what acting and learning on the CPU run on."""
    if kernels() is None:
        return f"torch ({missing() or f'{VARIABLE}={OFF}'})"
    name = os.environ.get(VARIABLE) or _module.instruction_sets()[0]  # type: ignore[union-attr]
    return f"compiled kernels ({name}, {num_threads()} thread{'s' if num_threads() > 1 else ''})"
