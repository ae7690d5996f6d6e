"""Which device a run is fastest on: a few seconds of the run itself on each, before it begins.

Environments and batches of the run's own size decide: small networks that few environments feed are faster on the CPU, whose
kernels take a step in less time than a GPU needs to begin one. The device that is taken goes into `config.yaml`, so that a
repetition and a resume compute where the run did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relayrl.engines.settings.run_settings import RunSettings
from relayrl.engines.thread_trial import steps_per_s, trial_settings
from relayrl.models.compute_device import missing_cuda

AUTO = "auto"


def with_fastest_device(settings: RunSettings, notes: list[str]) -> RunSettings:
    """The settings with the faster device in place of `auto`; a note says which it is, and why."""
    if settings.device != AUTO:
        return settings
    if missing := missing_cuda():
        notes.append(f"device=cpu: {missing}")
        return settings.model_copy(update={"device": "cpu"})
    return with_faster_of(settings, ("cpu", "cuda"), notes)


def with_faster_of(
    settings: RunSettings, names: Sequence[str], notes: list[str], rate: Callable[[RunSettings], float] = steps_per_s
) -> RunSettings:
    """The settings with the device of `names` that `rate`, environment steps/s of a trial, is largest on."""
    trial = trial_settings(settings)
    rates = {name: rate(trial.model_copy(update={"device": name})) for name in names}
    fastest = max(rates, key=lambda name: rates[name])
    measured = ", ".join(f"{number:,.0f} steps/s on {name}" for name, number in rates.items())
    notes.append(f"device={fastest}: {measured}")
    return settings.model_copy(update={"device": fastest})
