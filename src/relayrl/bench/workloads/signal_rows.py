"""What a reward signal costs: PPO with it beside PPO without, in the same process and run. No row has a target.

CartPole is the environment that costs least, so that the share of a signal is the largest there is.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from relayrl.bench.rows import Row
from relayrl.bench.workloads.ppo_rows import ROLLOUT_STEPS, UNIT, steps_per_s, workload_settings
from relayrl.engines.demos.demo_recording import record_demonstrations
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings

ENVIRONMENT = "native:CartPole"
NUM_ENVS, NUM_ROLLOUTS, REPETITIONS = 64, 6, 3
NO_TARGET = 0.0


def signal_rows() -> list[Row]:
    """Each signal with its defaults."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, dict[str, Any]] = {"rnd": {}, "curiosity": {}, "gail": {"demo_path": _demonstrations(folder)}}
        return _rows(given)


def _rows(given: dict[str, dict[str, Any]]) -> list[Row]:
    plain = workload_settings(ENVIRONMENT, NUM_ENVS, NUM_ROLLOUTS * NUM_ENVS * ROLLOUT_STEPS)
    with_signal = {name: _with_signal(plain, name, options) for name, options in given.items()}
    without: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in given}
    for _ in range(REPETITIONS):
        without.append(steps_per_s(plain))
        for name, settings in with_signal.items():
            rates[name].append(steps_per_s(settings))
    floor = statistics.median(without)
    rows = []
    for name, figures in rates.items():
        own = statistics.median(figures)
        rows.append(Row(f"PPO with {name}, {ENVIRONMENT}", own, UNIT, "PPO without it", floor, own / floor, NO_TARGET))
    return rows


def _with_signal(plain: RunSettings, name: str, options: dict[str, Any]) -> RunSettings:
    signals = {"extrinsic": {"strength": 1.0}, name: {"strength": 0.1, "options": options}}
    return build_run_settings(ENVIRONMENT, None, {**plain.model_dump(mode="json"), "reward_signals": signals}, [])


def _demonstrations(folder: str) -> str:
    """Ten episodes of a policy that has learned little: what they show does not matter here."""
    settings = workload_settings(ENVIRONMENT, NUM_ENVS, NUM_ENVS * ROLLOUT_STEPS)
    directory = RunDirectory(Path(folder) / "expert")
    directory.create(settings)
    LocalEngine(settings, directory).run(lambda _: None)
    demos = f"arrow:{folder}/demos"
    record_demonstrations(ENVIRONMENT, demos, policy=directory.path)
    return demos
