"""Loading torch's libraries in a thread while the settings are read: importing torch is most of a run's start.

The second core loads them and registers torch's operations; `import torch` then finds them in place. Where they are not
found, nothing happens, and torch loads them itself.

It is for the row `start-up to the first update`, which is 2.16 of Stable-Baselines3 with a target of 2: loading takes 0.20 of
1.62 CPU seconds until then, and by CPU seconds alone the row would be 1.93. A thread that does `import torch` would give
nothing: it keeps the GIL while it loads. Where other programs keep both cores busy, this one gives nothing either.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import threading
from functools import cache
from pathlib import Path

# In the order, and with the visibility, in which `import torch` loads them. What is left to it needs the GIL.
_LIBRARIES = (("libtorch_global_deps", os.RTLD_GLOBAL), ("libtorch", os.RTLD_LOCAL))
_SUFFIXES = {"linux": ".so", "darwin": ".dylib"}
# The loader has one lock: a module with a library of its own, and the first use of pydantic's, would wait for torch. So these
# come before it, those at least that every run needs next; the last two are for the first model.
_BEFORE = (
    *("csv", "fcntl", "hashlib", "json", "mmap", "multiprocessing.connection", "numpy.random", "yaml"),
    *("pydantic_core", "decimal", "zoneinfo"),
)


@cache
def preload_torch() -> None:
    """Begin to load, once a process; the interpreter waits for the thread before it ends."""
    spec = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    suffix = _SUFFIXES.get(sys.platform)
    if spec is None or spec.origin is None or suffix is None:
        return
    folder = Path(spec.origin).parent / "lib"
    found = [(folder / (name + suffix), mode) for name, mode in _LIBRARIES]
    if all(path.exists() for path, _ in found):
        for name in _BEFORE:
            importlib.import_module(name)
        sys.modules["pydantic_core"].SchemaValidator({"type": "int"}).validate_python(1)
        threading.Thread(target=_load, args=(found,), name="torch-preload").start()


def _load(libraries: list[tuple[Path, int]]) -> None:
    # Not `ctypes.CDLL(path)`, which keeps the GIL while it loads. Where a library cannot be loaded,
    # `import torch` will say what is wrong with it.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for path, mode in libraries:
        if dlopen(os.fsencode(path), mode | os.RTLD_NOW) is None:
            return
