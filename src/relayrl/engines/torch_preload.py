"""Loading torch's libraries in a thread while the settings are read: importing torch is most of a run's start.

The dynamic loader runs without the interpreter's lock, so the second core does it meanwhile; `import torch` then finds the
libraries in place. Where they are not found, nothing happens, and torch loads them itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path

# In the order, and with the visibility, in which `import torch` loads them.
_LIBRARIES = (("libtorch_global_deps", ctypes.RTLD_GLOBAL), ("libtorch_python", ctypes.RTLD_LOCAL))
_SUFFIXES = {"linux": ".so", "darwin": ".dylib"}


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
        threading.Thread(target=_load, args=(found,), name="torch-preload").start()


def _load(libraries: list[tuple[Path, int]]) -> None:
    for path, mode in libraries:
        try:
            ctypes.CDLL(str(path), mode=mode)
        except OSError:
            return  # `import torch` will say what is wrong with its libraries
