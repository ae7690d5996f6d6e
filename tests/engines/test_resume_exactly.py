"""Kill -9 at random moments, resume, and the run equals the one that nobody disturbed: parameters, statistics, evaluation."""

import csv
import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from waiting import wait_until

COMMON = {
    "environment.num_envs": 2,
    "network.hidden_sizes": (16,),
    "network.normalize_observations": True,
    "evaluation.episodes": 2,
    "evaluation.interval_episodes": 2,
    "trainer.keep_checkpoints": 2,
}
ON_POLICY = {
    "trainer.time_horizon": 16,
    "trainer.max_steps": 1920,
    "trainer.summary_freq": 96,
    "trainer.checkpoint_interval": 32,
    "evaluation.interval": 160,
    "params.num_minibatches": 2,
    "params.train_vf_iters": 2,
}
OFF_POLICY = {
    "network.normalize_observations": False,
    "trainer.max_steps": 1200,
    "trainer.summary_freq": 48,
    "trainer.checkpoint_interval": 20,
    "evaluation.interval": 100,
    "params.batch_size": 16,
    "params.buffer_size": 300,
    "params.learning_starts": 40,
    "params.update_interval": 2,
    "params.train_iters": 1,
}
PPO = ON_POLICY | {"params.train_pi_iters": 2, "params.normalize_returns": True, "params.lr_schedule": "linear"}
BOX_SPREAD = {"environment.options": {"continuous_actions": True}}
SMALL_SIGNAL = {"options": {"network": {"hidden_sizes": [16]}}}
SIGNALS = {"reward_signals": {"rnd": SMALL_SIGNAL, "curiosity": SMALL_SIGNAL, "extrinsic": {"strength": 0.5}}}
WRAPPED = {
    "environment.wrappers": [
        {"RepeatAction": {"num_repeats": 2}},
        {"FrameStackObservation": {"stack_size": 3}},
        "NormalizeReward",
    ],
    "environment.max_episode_steps": 30,
    "environment.flatten": True,
}
LESSONS = {
    "environment.parameters": {
        "local_ratio": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.2, "max_value": 0.8}},
        "max_cycles": {
            "curriculum": [
                {"name": "short", "value": 5, "completion_criteria": {"behavior": "agent", "threshold": -1e9}},
                {
                    "name": "mixed",
                    "value": {
                        "sampler_type": "multirangeuniform",
                        "sampler_parameters": {"intervals": [[6, 7], [9, 12]]},
                    },
                    "completion_criteria": {"behavior": "agent", "measure": "progress", "threshold": 0.5},
                },
                {"name": "long", "value": 15},
            ]
        },
    },
}
ROOMS = {
    "environment.options": {"num_rooms": 3, "room_size": 3},
    "environment.parameters": {
        "max_episode_steps": {"sampler_type": "gaussian", "sampler_parameters": {"mean": 20, "st_dev": 5}},
        "num_rooms": {
            "curriculum": [
                {
                    "name": "one",
                    "value": 1,
                    "completion_criteria": {"behavior": "agent", "threshold": 0.3, "min_lesson_length": 20},
                },
                {
                    "name": "all",
                    "value": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 3}},
                },
            ]
        },
    },
}
MASKED = {
    "environment.options": {"masks": True},
    "environment.parameters": {
        "episode_length": {
            "curriculum": [
                {
                    "name": "short",
                    "value": 3,
                    "completion_criteria": {
                        "behavior": "agent",
                        "threshold": 1.6,
                        "min_lesson_length": 30,
                        "require_reset": True,
                    },
                },
                {"name": "long", "value": 9},
            ]
        }
    },
}
SELF_PLAY = {
    "self_play": {"save_steps": 96, "team_change": 256, "swap_steps": 32, "window": 3},
    "trainer.max_steps": 960,
    "evaluation.interval": 320,
}
RESIDENT = {"device": "cpu:0", "network.memory": {"kind": "gru", "size": 8, "sequence_length": 6}}
SHORT_GAMES = {"environment.options": {"max_episode_steps": 40}}
CASES = {
    "ppo on native:CartPole": ("native:CartPole", "ppo", PPO),
    "ppo on CartPole-v1": ("CartPole-v1", "ppo", PPO),
    "ppo on mpe2": ("mpe2:simple_spread_v3", "ppo", PPO),
    "ppo on wrapped MountainCar": ("MountainCar-v0", "ppo", PPO | WRAPPED),
    "reinforce on Pendulum": ("Pendulum-v1", "reinforce", ON_POLICY | {"params.with_vf_baseline": True}),
    "td3 on Pendulum": ("Pendulum-v1", "td3", OFF_POLICY),
    "sac on Pendulum": ("Pendulum-v1", "sac", OFF_POLICY | {"params.priority_exponent": 0.6}),
    "ddpg on mpe2": ("mpe2:simple_spread_v3", "ddpg", OFF_POLICY | BOX_SPREAD),
    "ppo with signals": ("native:simple_tag", "ppo", PPO | SIGNALS),
    "sac with signals": ("Pendulum-v1", "sac", OFF_POLICY | SIGNALS | {"trainer.max_steps": 500}),
    "ppo with lessons": ("mpe2:simple_spread_v3", "ppo", PPO | LESSONS),
    "ppo with lessons in rooms": ("native:rooms", "ppo", PPO | ROOMS),
    "ppo with lessons and masks": ("relayrl.testing:FollowSignal", "ppo", PPO | MASKED),
    "ppo on a device": ("native:CartPole", "ppo", PPO | {"device": "cpu:0"}),
    "mappo with a memory on a device": ("native:simple_spread", "mappo", PPO | RESIDENT),
    "matd3 on native": ("native:simple_spread", "matd3", OFF_POLICY | BOX_SPREAD),
    "self-play of ppo": ("native:pong", "ppo", PPO | SELF_PLAY | SHORT_GAMES),
    "self-play of sac between groups": ("native:simple_tag", "sac", OFF_POLICY | SELF_PLAY | BOX_SPREAD),
}


def settings_of(case: str) -> RunSettings:
    env, algo, flags = CASES[case]
    return build_run_settings(env, None, COMMON | flags | {"algo": algo}, [])


def train(settings: RunSettings, path: Path) -> None:
    directory = RunDirectory(path)
    resumes = directory.config.exists()
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        engine.resume()
    engine.run(lambda _: None)


def train_under_fire(settings: RunSettings, path: Path, rng: np.random.Generator) -> int:
    """Train in child processes that are killed, the first after a few rows of statistics and the others at random moments,
    until one comes through; gives the number of kills."""
    context, first_rows = multiprocessing.get_context("fork"), int(rng.integers(1, 4))
    for kills in range(40):
        child = context.Process(target=train, args=(settings, path))
        child.start()
        if kills == 0:
            wait_until(lambda: not child.is_alive() or num_rows(path) >= first_rows)  # noqa: B023 - called here alone
        else:
            child.join(timeout=float(rng.uniform(0.05, 0.5)) * 1.15**kills)
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            continue
        assert child.exitcode == 0
        return kills
    raise AssertionError("the run never came through")


def num_rows(path: Path) -> int:
    """Rows of statistics that are there, however far the run is."""
    file = path / "progress.csv"
    return max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "system/"))} for row in rows]


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_ends_as_if_nothing_had_happened(case, tmp_path):
    settings = settings_of(case)
    train(settings, tmp_path / "calm")
    kills = train_under_fire(settings, tmp_path / "fire", np.random.default_rng(list(CASES).index(case)))
    calm, fire = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("calm", "fire"))
    for key in ("parameter_hash", "returns", "train_return", "best_return", "num_env_steps"):
        assert fire[key] == calm[key], (key, kills)
    assert rows_of(tmp_path / "fire") == rows_of(tmp_path / "calm")
    steps = [int(row["num_env_steps"]) for row in rows_of(tmp_path / "fire")]
    assert steps == sorted(set(steps))
    assert kills > 0
