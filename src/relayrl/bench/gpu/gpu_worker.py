"""One work of the GPU benchmark in a process of its own; prints one JSON object.

    python -m relayrl.bench.gpu.gpu_worker cartpole_large --device cuda --repeats 3
    python -m relayrl.bench.gpu.gpu_worker cartpole_large --device cpu --repeats 1 --tiny

A rate counts environment steps from the warm-up's last update to the run's last one, with the device waited for at both. What
compiles and captures does so in the warm-up; the first update's time since the process began has it all, and `phases_s` of the
work `startup` has its parts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.bench.gpu.gpu_works import STARTUP, STARTUP_WORK, WORKS, GpuWork
from relayrl.bench.gpu.start_up_clock import StartUpClock, process_seconds

if TYPE_CHECKING:
    from relayrl.engines.callbacks.live_run import LiveRun


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
            self.wait()
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
        self.wait()
        return time.perf_counter()

    def wait(self) -> None:
        """Wait for the device."""
        if self._is_cuda:
            import torch

            torch.cuda.synchronize()


def measure_start_up(work: GpuWork, device: str) -> dict[str, Any]:
    """Train once, from the beginning of this process; the figures have the seconds of each phase."""
    start_up = StartUpClock(UpdateClock(work.num_warm_up_steps, device).wait)
    return {**measure(work, device, 1, start_up), "phases_s": start_up.phases_s()}


def measure(work: GpuWork, device: str, num_repeats: int, start_up: StartUpClock | None = None) -> dict[str, Any]:
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
                callbacks=[clock] if start_up is None else [start_up.callback(), clock],
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
    if arguments.work == STARTUP:
        figures = measure_start_up(work, arguments.device)
    else:
        figures = measure(work, arguments.device, arguments.repeats)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
