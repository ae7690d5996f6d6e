"""W5: TD3, DDPG and SAC on Pendulum-v1, one gradient step per step, beside Stable-Baselines3 in the same process and run."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from functools import partial
from pathlib import Path

from relayrl.bench.rows import Row, interleaved
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings

PEER = "Stable-Baselines3"
TARGET_RATIO = 2.5
REPETITIONS = 3
WARM_UP_STEPS = 300
TIMED_STEPS = 300
BATCH_SIZE = 256
HIDDEN_SIZES = (256, 256)
LEARNING_RATE = 1e-3
PEER_THREADS = 2


def off_policy_rows() -> list[Row]:
    """Environment steps/s of acting and learning together, random steps at the beginning not counted."""
    unit, has_peer = "env steps/s", importlib.util.find_spec("stable_baselines3") is not None
    rows = []
    for algo in ("td3", "ddpg", "sac"):
        name, settings = f"W5 {algo.upper()} Pendulum-v1, batch {BATCH_SIZE}", workload_settings(algo)
        measure_ours = partial(steps_per_s_of_learning, settings, WARM_UP_STEPS, TIMED_STEPS)
        if not has_peer:
            missing = f"{PEER} is not installed: pip install 'relayrl[peers]'"
            rows.append(Row(name, measure_ours(), unit, missing, None, None, TARGET_RATIO))
            continue
        ours, theirs = interleaved(measure_ours, partial(_sb3, algo), REPETITIONS)
        rows.append(Row(name, ours, unit, f"{PEER}, {PEER_THREADS} threads", theirs, ours / theirs, TARGET_RATIO))
    return rows


def workload_settings(algo: str) -> RunSettings:
    """The work: two layers of 256 relu units, batches of 256, a gradient step after each environment step."""
    flags = {
        "algo": algo,
        "environment.num_envs": 1,
        "trainer.max_steps": WARM_UP_STEPS + TIMED_STEPS,
        "network.hidden_sizes": HIDDEN_SIZES,
        "network.activation": "relu",
        "evaluation.episodes": 0,
        "params": {
            "batch_size": BATCH_SIZE,
            "buffer_size": 100_000,
            "learning_starts": WARM_UP_STEPS,
            "update_interval": 1,
            "train_iters": 1,
            "actor_lr": LEARNING_RATE,
            "critic_lr": LEARNING_RATE,
        },
    }
    return build_run_settings("Pendulum-v1", None, flags, [])


def steps_per_s_of_learning(settings: RunSettings, num_warm_up: int, num_timed: int) -> float:
    """Steps/s of a run from the first gradient step on."""
    started: list[float] = []

    def note_start(progress: object) -> None:
        if getattr(progress, "num_env_steps", 0) >= num_warm_up and not started:
            started.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        directory.create(settings)
        engine = LocalEngine(settings, directory, tensorboard=False)
        begin = time.perf_counter()
        seconds = engine.run(note_start).seconds
    return num_timed / (seconds - (started[0] - begin))


def _sb3(algo: str) -> float:
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    class Start(BaseCallback):
        """Notes when the random steps are over."""

        seconds = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps == WARM_UP_STEPS:
                self.seconds = time.perf_counter()
            return True

    torch.set_num_threads(PEER_THREADS)
    model = {"td3": sb3.TD3, "ddpg": sb3.DDPG, "sac": sb3.SAC}[algo](
        "MlpPolicy",
        "Pendulum-v1",
        learning_starts=WARM_UP_STEPS,
        train_freq=1,
        gradient_steps=1,
        batch_size=BATCH_SIZE,
        buffer_size=100_000,
        learning_rate=LEARNING_RATE,
        policy_kwargs={"net_arch": list(HIDDEN_SIZES)},
        seed=1,
        device="cpu",
    )
    start = Start()
    model.learn(WARM_UP_STEPS + TIMED_STEPS, callback=start)
    return TIMED_STEPS / (time.perf_counter() - start.seconds)
