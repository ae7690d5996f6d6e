"""Where the time goes: a sampling profiler in Python that writes a flame graph, and torch's own trace beside it.

    with profile("run.svg"):                # or run.speedscope.json, for https://speedscope.app
        train()

All threads are sampled, a hundred times a second or so, by a thread of the profiler's own; what is profiled runs at its usual
speed. Where torch is loaded when profiling begins, `<name>.torch.json` is a trace for chrome://tracing and Perfetto.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from relayrl.errors import ConfigError
from relayrl.observability.flame_graph import Stack, flame_graph_svg, speedscope_json

JOIN_TIMEOUT_S = 10.0
_IDLE = {"wait", "_wait_for_tstate_lock", "select", "poll", "accept", "_worker"}


@dataclass(slots=True)
class ProfileResult:
    """What was sampled; complete when the `with` block has ended."""

    path: Path
    torch_trace: Path | None
    stacks: Counter[Stack]
    num_samples: int = 0


class StackSampler:
    """Counts the stacks of all other threads at regular intervals."""

    def __init__(self, interval_s: float) -> None:
        if interval_s <= 0:
            raise ConfigError(f"interval_s is {interval_s}; it must be positive")
        self._interval_s, self._stop = interval_s, threading.Event()
        self.stacks: Counter[Stack] = Counter()
        self.num_samples = 0
        self._thread = threading.Thread(target=self._run, name="relayrl-profiler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def sample(self) -> None:
        """Count the present stacks once. Threads that only wait are left out."""
        own = threading.get_ident()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own and frame.f_code.co_name not in _IDLE:
                self.stacks[(names.get(ident, f"thread {ident}"), *_frames(frame))] += 1
        self.num_samples += 1

    def _run(self) -> None:
        next_s = time.perf_counter()
        while not self._stop.is_set():
            self.sample()
            next_s = max(next_s + self._interval_s, time.perf_counter())
            self._stop.wait(max(0.0, next_s - time.perf_counter()))


@contextlib.contextmanager
def profile(path: Path | str, *, interval_s: float = 0.01) -> Iterator[ProfileResult]:
    """Profile the block; writes `path`, an SVG or, by the suffix `.json`, a speedscope file, also when the block raises."""
    path = Path(path)
    if path.suffix not in (".svg", ".json"):
        raise ConfigError(f"cannot write a profile to {path}; use the suffix .svg or .json")
    trace = path.with_name(f"{path.name.split('.')[0]}.torch.json") if "torch" in sys.modules else None
    result = ProfileResult(path, trace, Counter())
    sampler = StackSampler(interval_s)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        torch_profiler = stack.enter_context(_torch_profiler()) if trace is not None else None
        sampler.start()
        try:
            yield result
        finally:
            sampler.stop()
            result.stacks, result.num_samples = sampler.stacks, sampler.num_samples
            text = flame_graph_svg if path.suffix == ".svg" else speedscope_json
            path.write_text(text(sampler.stacks, interval_s))
    if torch_profiler is not None:
        torch_profiler.export_chrome_trace(str(trace))


def _torch_profiler() -> Any:
    profiler = importlib.import_module("torch.profiler")
    return profiler.profile(activities=[profiler.ProfilerActivity.CPU])


def _frames(frame: FrameType | None) -> list[str]:
    """Function names of a stack, outermost first."""
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        names.append(f"{code.co_qualname} ({_short(code.co_filename)}:{code.co_firstlineno})")
        frame = frame.f_back
    return names[::-1]


def _short(filename: str) -> str:
    return "/".join(Path(filename).parts[-2:])
