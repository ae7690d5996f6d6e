"""Where the seconds of a run go until its first update and the two after it: torch, building, compiling, capturing."""

from __future__ import annotations

import logging
import os
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from relayrl.engines.callbacks.live_run import LiveRun

COMPILER_LOG = "relayrl.accelerator.device_accelerator"


def process_seconds() -> float:
    """Seconds since this process began, the interpreter's own start included (Linux)."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


class StartUpClock:
    """Watches one run; made before torch is imported, and added to the run by `callback`."""

    def __init__(self, wait: Callable[[], None]) -> None:
        """`wait` returns when the device has done all that was asked of it."""
        self._wait, self._torch = wait, _ImportTime("torch")
        self._compiled = _CompilerLog()
        self._began, self._built = process_seconds(), 0.0
        self._updates: list[float] = []
        sys.meta_path.insert(0, self._torch)
        logging.getLogger(COMPILER_LOG).addHandler(self._compiled)

    def callback(self) -> Any:
        """What sees the run begin and update."""
        from relayrl.engines.callbacks.callback import Callback

        clock = self

        class Marks(Callback):
            def on_start(self, run: LiveRun) -> None:
                clock._built = process_seconds()

            def on_update(self, run: LiveRun) -> None:
                if len(clock._updates) < 3:
                    clock._wait()
                    clock._updates.append(process_seconds())

        return Marks()

    def phases_s(self) -> dict[str, float]:
        """Seconds of each; all but the last two add up to the first update since the process began."""
        first, second, third = self._updates
        torch_s, compile_s = self._torch.seconds, self._compiled.seconds
        phases = {
            "interpreter": self._began,
            "import torch": torch_s,
            "other imports, environment, policy": self._built - self._began - torch_s,
            "compilation": compile_s,
            "first update": first - self._built - compile_s,
            "second update, captured": second - first,
            "third update": third - second,
        }
        return {name: round(seconds, 3) for name, seconds in phases.items()}


class _ImportTime:
    """A finder that times the import of one module, imports inside of it included."""

    def __init__(self, name: str) -> None:
        self._name, self.seconds = name, 0.0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As finders have it; other modules are left to the finders behind."""
        spec: Any = PathFinder.find_spec(name, path, target) if name == self._name else None
        if spec is not None:
            execute = spec.loader.exec_module

            def timed(module: ModuleType) -> None:
                started = time.perf_counter()
                execute(module)
                self.seconds = time.perf_counter() - started

            spec.loader.exec_module = timed
        return spec


class _CompilerLog(logging.Handler):
    """Adds up the seconds of `compiled … kernels in … s`."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("compiled") and isinstance(record.args, tuple):
            self.seconds += float(str(record.args[1]))
