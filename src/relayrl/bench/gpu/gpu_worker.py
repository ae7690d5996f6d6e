"""One work of the GPU benchmark in a process of its own; prints one JSON object.

    python -m relayrl.bench.gpu.gpu_worker cartpole_large --device cuda --repeats 3
    python -m relayrl.bench.gpu.gpu_worker cartpole_large --device cpu --repeats 1 --tiny

A rate counts environment steps from the warm-up's last update to the run's last one, with the device waited for at both. What
compiles and captures does so in the warm-up; the first update's time since the process began has it all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.bench.gpu.gpu_works import STARTUP, STARTUP_WORK, WORKS, GpuWork

if TYPE_CHECKING:
    from relayrl.engines.callbacks.live_run import LiveRun


def process_seconds() -> float:
    """Seconds since this process began, the interpreter's own start included (Linux)."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


class UpdateClock:
    """A callback that times a run between two of its updates."""

    def __init__(self, num_warm_up_steps: int, device: str) -> None:
        self._num_warm_up_steps, self._is_cuda = num_warm_up_steps, device.startswith("cuda")
        self._start: tuple[int, float] | None = None
        self._end: tuple[int, float] | None = None
        self.first_update_s: float | None = None

    def __call__(self, run: LiveRun) -> None:
        num_steps = run.num_env_steps
        if self.first_update_s is None and run.policy_version > 0:
            self._wait()
            self.first_update_s = process_seconds()
        if self._start is None and num_steps >= self._num_warm_up_steps:
            self._start = (num_steps, self._now())
        elif num_steps >= run.max_steps:
            self._end = (num_steps, self._now())

    @property
    def env_steps_per_s(self) -> float:
        """Environment steps a second between the two."""
        if self._start is None or self._end is None:
            raise RuntimeError(f"too few updates to time: {self._start} to {self._end}")
        return (self._end[0] - self._start[0]) / (self._end[1] - self._start[1])

    def _now(self) -> float:
        self._wait()
        return time.perf_counter()

    def _wait(self) -> None:
        if self._is_cuda:
            import torch

            torch.cuda.synchronize()


def measure(work: GpuWork, device: str, num_repeats: int) -> dict[str, Any]:
    """Train that often, with another seed each."""
    from relayrl.api import train

    rates: list[float] = []
    returns: list[float] = []
    first_update_s, computed_by = None, ""
    for seed in range(num_repeats):
        clock = UpdateClock(work.num_warm_up_steps, device)
        with tempfile.TemporaryDirectory() as folder:
            run = train(
                work.env,
                algo=work.algo,
                steps=work.num_steps,
                num_envs=work.num_envs,
                seed=seed,
                run_dir=Path(folder) / "run",
                settings=work.run_settings(device),
                callbacks=[clock],
                progress=False,
            )
            if math.isfinite(run.result.mean_return):
                returns.append(run.result.mean_return)
            computed_by = run.result.computed_by
        rates.append(clock.env_steps_per_s)
        first_update_s = first_update_s or clock.first_update_s
    return {
        "env_steps_per_s": statistics.median(rates),
        "rates": rates,
        "seconds_to_first_update": first_update_s,
        "mean_return": statistics.mean(returns) if returns else None,
        "returns": returns,
        "device": device,
        "computed_by": computed_by,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=[*WORKS, STARTUP])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="8 environments: to see that it runs")
    arguments = parser.parse_args()
    work = STARTUP_WORK if arguments.work == STARTUP else WORKS[arguments.work]
    work = work.tiny() if arguments.tiny else work
    if arguments.device == "cpu" and work.num_cpu_iterations:
        work = work.on_cpu()
    print(json.dumps(measure(work, arguments.device, arguments.repeats)), flush=True)


if __name__ == "__main__":
    main()
