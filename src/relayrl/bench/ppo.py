"""W1 and W2: PPO on CartPole-v1 end to end, beside Stable-Baselines3 doing the same work in the same process and run."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from pathlib import Path

from relayrl.bench.rows import Row, interleaved
from relayrl.engines.local import LocalEngine
from relayrl.engines.run_directory import RunDirectory
from relayrl.engines.run_settings import RunSettings, build_run_settings

PEER = "Stable-Baselines3"
TARGET_RATIO = 2.0
REPETITIONS = 3
ROLLOUT_STEPS = 128
EPOCHS = 4
MINIBATCHES = 4
LEARNING_RATE = 2.5e-4
CLIP = 0.2


def ppo_rows(name: str, num_envs: int, num_steps: int) -> list[Row]:
    """One row: environment steps/s of collection and learning together."""
    settings = workload_settings(num_envs, num_steps)
    unit, row_name = "env steps/s", f"{name} PPO CartPole-v1, {num_envs} environments"
    if importlib.util.find_spec("stable_baselines3") is None:
        ours = statistics.median(_ours(settings) for _ in range(REPETITIONS))
        return [
            Row(
                row_name, ours, unit, f"{PEER} is not installed: pip install 'relayrl[peers]'", None, None, TARGET_RATIO
            )
        ]
    ours, theirs = interleaved(lambda: _ours(settings), lambda: _sb3(num_envs, num_steps), REPETITIONS)
    return [Row(row_name, ours, unit, PEER, theirs, ours / theirs, TARGET_RATIO)]


def workload_settings(num_envs: int, num_steps: int) -> RunSettings:
    """The work: 128 steps a world, 4 epochs of 4 minibatches, two layers of 64 tanh units for actor and critic each."""
    flags = {
        "environment.num_envs": num_envs,
        "trainer.max_steps": num_steps,
        "trainer.time_horizon": ROLLOUT_STEPS,
        "network.hidden_sizes": (64, 64),
        "evaluation.episodes": 0,
        "params": {
            "train_pi_iters": EPOCHS,
            "train_vf_iters": EPOCHS,
            "num_minibatches": MINIBATCHES,
            "pi_lr": LEARNING_RATE,
            "vf_lr": LEARNING_RATE,
            "lam": 0.95,
            "clip_ratio": CLIP,
            "value_clip": CLIP,
            "entropy_coef": 0.01,
            "target_kl": None,
            "lr_schedule": "linear",
        },
    }
    return build_run_settings("CartPole-v1", None, flags, [])


def _ours(settings: RunSettings) -> float:
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        directory.create(settings)
        return LocalEngine(settings, directory).run(lambda _: None).env_steps_per_s


def _sb3(num_envs: int, num_steps: int) -> float:
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    batch = num_envs * ROLLOUT_STEPS
    model = sb3.PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=num_envs, seed=1),
        n_steps=ROLLOUT_STEPS,
        batch_size=batch // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=lambda left: LEARNING_RATE * left,
        gae_lambda=0.95,
        clip_range=CLIP,
        clip_range_vf=CLIP,
        ent_coef=0.01,
        seed=1,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
    )
    steps = num_steps // batch * batch
    start = time.perf_counter()
    model.learn(steps)
    return float(model.num_timesteps / (time.perf_counter() - start))
