"""A policy trained on a native environment plays its original without a change, and as well."""

import math
from pathlib import Path

import numpy as np
import pytest

from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.models.exports.exported import ExportedActor
from relayrl.runtime.evaluation import EvaluationResult, evaluate

EPISODES = 150
TRAINING = {
    "environment.num_envs": 64,
    "trainer.time_horizon": 25,
    "trainer.max_steps": 160_000,
    "network.hidden_sizes": (64, 64),
    "params.train_pi_iters": 4,
    "params.train_vf_iters": 4,
    "params.num_minibatches": 4,
    "params.pi_lr": 1e-3,
    "params.gamma": 0.95,
    "params.normalize_returns": True,
    "evaluation.episodes": 0,
}


def play(env: str, model: Path, *, drawn: bool = False) -> EvaluationResult:
    actor = ExportedActor(model)
    envs = make_vector(env, EnvSettings(num_envs=10))
    rng = np.random.default_rng(0) if drawn else None
    try:
        return evaluate(envs, {actor.metadata.group: actor}, episodes=EPISODES, seed=7, rng=rng)
    finally:
        envs.close()


@pytest.mark.slow
def test_a_policy_trained_on_native_simple_spread_plays_mpe2_as_well(tmp_path):
    returns = {}
    for name, steps in (("trained", TRAINING["trainer.max_steps"]), ("fresh", 1)):
        settings = build_run_settings("native:simple_spread", None, TRAINING | {"trainer.max_steps": steps}, [])
        directory = RunDirectory(tmp_path / name)
        directory.create(settings)
        LocalEngine(settings, directory).run(lambda _: None)
        (model,) = directory.models()
        returns[name] = {env: play(env, model) for env in ("native:simple_spread", "mpe2:simple_spread_v3")}
    here, there = returns["trained"].values()
    error = math.hypot(here.std_return, there.std_return) / math.sqrt(EPISODES)
    assert abs(here.mean_return - there.mean_return) < 3 * error
    # The comparison means something: training made a difference larger than the noise.
    assert there.mean_return > returns["fresh"]["mpe2:simple_spread_v3"].mean_return + 3 * error
