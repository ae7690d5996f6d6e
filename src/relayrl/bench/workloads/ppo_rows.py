"""W1 and W2: PPO on CartPole end to end, beside Stable-Baselines3 doing the same work in the same process and run.

Ours runs once on Gymnasium's own vector CartPole and once on the native one.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from pathlib import Path

from relayrl.bench.rows import Row
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings

UNIT = "env steps/s"
PEER = "Stable-Baselines3"
TARGET_RATIO = 5.0
ENVIRONMENTS = ("CartPole-v1", "native:CartPole")
REPETITIONS = 3
ROLLOUT_STEPS = 128
EPOCHS = 4
MINIBATCHES = 4
LEARNING_RATE = 2.5e-4
CLIP = 0.2


def ppo_rows(name: str, num_envs: int, num_steps: int) -> list[Row]:
    """A row for each environment: environment steps/s of collection and learning together."""
    ours: list[list[float]] = [[] for _ in ENVIRONMENTS]
    theirs: list[float] = []
    has_peer = importlib.util.find_spec("stable_baselines3") is not None
    for _ in range(REPETITIONS):
        for env, figures in zip(ENVIRONMENTS, ours, strict=True):
            figures.append(steps_per_s(workload_settings(env, num_envs, num_steps)))
        if has_peer:
            theirs.append(_sb3(num_envs, num_steps))
    against = PEER if has_peer else f"{PEER} is not installed: pip install 'relayrl[peers]'"
    peer = statistics.median(theirs) if has_peer else None
    rows = []
    for env, figures in zip(ENVIRONMENTS, ours, strict=True):
        own = statistics.median(figures)
        ratio = None if peer is None else own / peer
        rows.append(Row(f"{name} PPO {env}, {num_envs} environments", own, UNIT, against, peer, ratio, TARGET_RATIO))
    return rows


def workload_settings(
    env: str, num_envs: int, num_steps: int, *, algo: str = "ppo", rollout_steps: int = ROLLOUT_STEPS, workers: int = 0
) -> RunSettings:
    """The work: 128 steps an environment, 4 epochs of 4 minibatches, two layers of 64 tanh units for actor and critic each."""
    flags = {
        "algo": algo,
        "environment.workers": workers,
        "environment.num_envs": num_envs,
        "trainer.max_steps": num_steps,
        "trainer.time_horizon": rollout_steps,
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
    return build_run_settings(env, None, flags, [])


def steps_per_s(settings: RunSettings) -> float:
    """Environment steps/s of a run, without its start and end."""
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
