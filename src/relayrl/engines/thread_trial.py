"""How many threads a run is fastest with: a few seconds of the run itself with each number, before it begins.

Only networks that torch computes ask for this; compiled kernels take what the machine has. The number that is taken goes into
`config.yaml`, so that a repetition gives the same parameters.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from relayrl.compiled.usable_cores import num_cores
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import Progress, RunInterrupted
from relayrl.engines.settings.run_settings import RunSettings

SECONDS = 2.0
"""Of each trial, after its first update."""
PATIENCE = 2
"""Trials are over when so many numbers in a row were not worthwhile, so that many cores do not make them long."""
WORTHWHILE = 1.1
"""More threads are taken only where they give so many times the speed: they take cores from everything else."""
RANDOM_STEPS = 500
"""Enough for replay to be learned from."""


def measured_rates(settings: RunSettings) -> dict[int, float]:
    """Environment steps/s with 1, 2, 4 … threads, up to one for each core, as long as more of them may be faster."""
    rates: dict[int, float] = {}
    for count in _counts(num_cores()):
        rates[count] = steps_per_s(trial_settings(settings).model_copy(update={"threads": count}))
        tried = list(rates)
        if len(tried) > PATIENCE and fewest_fast_threads(rates) not in tried[-PATIENCE:]:
            break
    return rates


def _counts(cores: int) -> list[int]:
    return sorted({*(2**n for n in range(cores.bit_length())), cores})


def fewest_fast_threads(rates: dict[int, float]) -> int:
    """The smallest number that a larger one does not beat by far."""
    chosen = min(rates)
    for count in sorted(rates):
        if rates[count] >= WORTHWHILE * rates[chosen]:
            chosen = count
    return chosen


def trial_settings(settings: RunSettings) -> RunSettings:
    """The run without an end, and without what a trial of its speed would wait for."""
    params = settings.params
    if hasattr(params, "learning_starts"):
        params = params.model_copy(update={"learning_starts": min(params.learning_starts, RANDOM_STEPS)})
    no_evaluation = settings.evaluation.model_copy(update={"episodes": 0, "interval": None})
    endless = settings.trainer.model_copy(update={"max_steps": 2**62, "checkpoint_interval": 2**62})
    changes = {"params": params, "evaluation": no_evaluation, "trainer": endless, "record": None}
    return settings.here().model_copy(update=changes)


def steps_per_s(settings: RunSettings) -> float:
    """Environment steps/s of a run, over `SECONDS` of it in a directory of its own."""
    ticks: list[tuple[int, float]] = []
    begin = getattr(settings.params, "learning_starts", 0) + 1

    def on_progress(progress: Progress) -> None:
        if progress.num_env_steps >= begin:
            ticks.append((progress.num_env_steps, time.perf_counter()))

    def is_over() -> bool:
        return len(ticks) > 1 and ticks[-1][1] - ticks[0][1] >= SECONDS

    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "trial")
        directory.create(settings)
        with contextlib.suppress(RunInterrupted):
            LocalEngine(settings, directory, tensorboard=False).run(on_progress, is_over)
    (first_steps, start), (last_steps, end) = ticks[0], ticks[-1]
    return (last_steps - first_steps) / (end - start)
