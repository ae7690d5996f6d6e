"""What `--record` costs a run: PPO on CartPole-v1 with 64 environments, with and without an Arrow sink, in turn."""

from __future__ import annotations

import tempfile
from pathlib import Path

from relayrl.bench.rows import Row, interleaved
from relayrl.bench.workloads.ppo_rows import workload_settings
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings

NUM_ENVS, ROLLOUT_STEPS, NUM_ROLLOUTS = 64, 128, 20
TARGET_RATIO = 0.95
REPETITIONS = 7


def recording_rows() -> list[Row]:
    """Steps/s of the recorded run over those of the plain one.

    Both save before their last rollout, so that the time includes making all earlier ones durable.
    """
    block = NUM_ENVS * ROLLOUT_STEPS
    settings = workload_settings("CartPole-v1", NUM_ENVS, NUM_ROLLOUTS * block)
    saving = settings.trainer.model_copy(update={"checkpoint_interval": (NUM_ROLLOUTS - 1) * block})
    settings = settings.model_copy(update={"trainer": saving})
    _steps_per_s(settings, record=False)
    _steps_per_s(settings, record=True)
    recorded, plain = interleaved(
        lambda: _steps_per_s(settings, record=True), lambda: _steps_per_s(settings, record=False), REPETITIONS
    )
    name = "PPO CartPole-v1, 64 environments, recorded to Arrow"
    return [Row(name, recorded, "env steps/s", "the same run unrecorded", plain, recorded / plain, TARGET_RATIO)]


def _steps_per_s(settings: RunSettings, *, record: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        url = f"arrow:{folder}/experience" if record else None
        run = settings.model_copy(update={"record": url})
        directory = RunDirectory(Path(folder) / "run")
        directory.create(run)
        return LocalEngine(run, directory).run(lambda _: None).env_steps_per_s
