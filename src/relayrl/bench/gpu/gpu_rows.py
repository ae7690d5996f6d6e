"""`relayrl bench gpu`: training on a CUDA device beside JAX programs, plain torch and our own run on the CPU.

Ours and each program run in processes of their own, one after the other, three whole runs each; rows have the medians, without
what compiles before. Without a CUDA device there are no rows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relayrl.bench.gpu.gpu_works import NAMES, STARTUP, STARTUP_BUDGET_S, STARTUP_WORK, WORKS, GpuWork, Program
from relayrl.bench.rows import Row
from relayrl.errors import UnknownNameError

UNIT = "env steps/s"
REPETITIONS = 3
LIMIT_S = 120.0
PROGRAMS = Path(__file__).resolve().parents[4] / "benchmarks" / "gpu"
"""Where a checkout has the programs beside which we measure."""
MEMORY_SHARE = "0.5"
"""Of the device's memory, for JAX: all else that it holds is there already."""


class MeasurementError(Exception):
    """A process gave no figures; the message says why."""


@dataclass(frozen=True)
class Bench:
    """How rows are measured: on which device, how often, how long a process may take, and whether to see only that it runs."""

    device: str = "cuda"
    num_repeats: int = REPETITIONS
    limit_s: float = LIMIT_S
    is_tiny: bool = False
    environ: dict[str, str] = field(default_factory=dict)

    def ours(self, name: str, device: str, num_repeats: int) -> dict[str, Any]:
        """The figures of our own run."""
        words = ["-m", "relayrl.bench.gpu.gpu_worker", name, "--device", device, "--repeats", str(num_repeats)]
        return self._figures(words + ["--tiny"] * self.is_tiny)

    def program(self, program: Program) -> dict[str, Any]:
        """The figures of a program; raises where it, or what it is written in, is not there."""
        if not PROGRAMS.exists():
            raise MeasurementError("its program is in the repository: run in a checkout")
        if importlib.util.find_spec(program.needs) is None:
            raise MeasurementError(f"{program.needs} is not installed")
        words = [str(PROGRAMS / program.script), *program.arguments, "--repeats", str(self.num_repeats)]
        words += ["--device", self.device] * (program.needs == "torch")
        figures = self._figures(words)
        if program.needs == "jax" and self.device != "cpu" and figures["device"] == "cpu":
            raise MeasurementError("jax has no CUDA device")
        return figures

    def _figures(self, words: Sequence[str]) -> dict[str, Any]:
        environ = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_SHARE, **self.environ}
        try:
            done = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, check=False, timeout=self.limit_s, env=environ
            )
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"took longer than {self.limit_s:g} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise MeasurementError(lines[-1][:300] if lines else f"exit code {done.returncode}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def gpu_rows(only: Sequence[str] = (), limit_s: float = LIMIT_S) -> Iterator[Row]:
    """The chosen rows, or all, each when it is measured; none without a CUDA device, which is printed."""
    for name in only:
        if name not in NAMES:
            raise UnknownNameError("row of gpu", name, NAMES)
    if not has_cuda():
        print("no CUDA device")
        return
    for name in only or NAMES:
        yield from measured(name, Bench(limit_s=limit_s))


def measured(name: str, bench: Bench) -> list[Row]:
    """The rows of one work."""
    if name == STARTUP:
        return _startup_rows(bench)
    work = WORKS[name].tiny() if bench.is_tiny else WORKS[name]
    peer = "our CPU path" if work.peer is None else work.peer.script
    try:
        ours = bench.ours(name, bench.device, bench.num_repeats)
    except MeasurementError as error:
        return [Row(f"{work.title}: {error}", 0.0, UNIT, peer, 0.0, 0.0, work.target)]
    figure, title = ours["env_steps_per_s"], _with_return(work.title, ours)
    try:
        theirs = _beside(name, work, bench)
    except MeasurementError as error:
        return [Row(title, figure, UNIT, f"{peer}: {error}", None, None, work.target)]
    rate = theirs["env_steps_per_s"]
    return [Row(title, figure, UNIT, _with_return(peer, theirs), rate, figure / rate, work.target)]


def _beside(name: str, work: GpuWork, bench: Bench) -> dict[str, Any]:
    return bench.ours(name, "cpu", 1) if work.peer is None else bench.program(work.peer)


def _with_return(title: str, figures: dict[str, Any]) -> str:
    mean_return = figures["mean_return"]
    return title if mean_return is None else f"{title} (return {mean_return:.1f})"


def _startup_rows(bench: Bench) -> list[Row]:
    """With nothing compiled before: kernels go into a folder that is empty."""
    title, peer = STARTUP_WORK.title, STARTUP_WORK.tiny().peer if bench.is_tiny else STARTUP_WORK.peer
    with tempfile.TemporaryDirectory() as folder:
        cold = replace(bench, num_repeats=1, environ={"TRITON_CACHE_DIR": folder})
        try:
            ours = cold.ours(STARTUP, bench.device, 1)
        except MeasurementError as error:
            return [Row(f"{title}: {error}", 0.0, "s", "target", 0.0, 0.0, 1.0)]
        seconds = ours["seconds_to_first_update"]
        print(", ".join(f"{phase} {phase_s:.2f} s" for phase, phase_s in ours["phases_s"].items()))
        rows = [Row(title, seconds, "s", "target", STARTUP_BUDGET_S, STARTUP_BUDGET_S / seconds, 1.0)]
        if peer is None:
            return rows
        try:
            theirs = cold.program(peer)["seconds_to_first_update"]
        except MeasurementError as error:
            return [*rows, Row(title, seconds, "s", f"{peer.script}: {error}", None, None, 1.0)]
    return [*rows, Row(title, seconds, "s", peer.script, theirs, theirs / seconds, 1.0)]
