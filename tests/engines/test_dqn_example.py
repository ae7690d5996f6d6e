"""The off-policy seam, by an algorithm without an actor that a user wrote: `examples/dqn.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import relayrl
from relayrl.accelerator.live_actor import live_actor
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import RunInterrupted, RunResult
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import ConfigError
from relayrl.models.exports.exported import ExportedActor
from relayrl.models.network_settings import NetworkSettings

SMALL = {
    "algo": "dqn",
    "environment.num_envs": 2,
    "network.hidden_sizes": (16,),
    "trainer.max_steps": 400,
    "evaluation.episodes": 2,
    "params.batch_size": 16,
    "params.learning_starts": 40,
    "params.update_interval": 4,
    "params.priority_exponent": 0.6,
    "params.num_step_returns": 2,
}


@pytest.fixture
def dqn() -> Any:
    path = Path(__file__).parents[2] / "examples" / "dqn.py"
    spec = importlib.util.spec_from_file_location("dqn_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    unregister_plugin(PluginKind.ALGORITHM, "dqn")


def make_policy(dqn: Any, epsilon: float, space: spaces.Discrete) -> Any:
    head = dqn.DQN.make_head(space, dqn.DQNParams())
    observations, network = spaces.Box(-1, 1, (3,), np.float32), NetworkSettings(hidden_sizes=(8,))
    policy = dqn.EpsilonGreedyPolicy(observations, head, network, torch.Generator().manual_seed(0))
    policy.epsilon.fill_(epsilon)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_exploration_obeys_epsilon_and_masks(dqn, epsilon):
    policy = make_policy(dqn, epsilon, spaces.Discrete(4, start=1))
    obs = np.tile(np.array([[0.1, -0.2, 0.3]], np.float32), (20_000, 1))
    values = policy.q(policy.features(torch.from_numpy(obs[:1])))[0].detach()
    mask = np.ones((len(obs), 4), bool)
    mask[:, int(values.argmax())] = False
    best = 1 + int(values.masked_fill(~torch.from_numpy(mask[0]), -1e9).argmax())
    actor = live_actor(policy)
    actions = actor.act(obs, mask, np.random.default_rng(0))
    assert (1 + int(values.argmax())) not in actions
    assert (actions == best).mean() == pytest.approx(1 - epsilon + epsilon / 3, abs=0.02)
    assert (actor.act_greedily(obs[:5], mask[:5]) == best).all()


def test_the_exploration_falls_linearly_and_then_stays(dqn):
    policy = make_policy(dqn, 1.0, spaces.Discrete(2))
    params = dqn.DQNParams(first_epsilon=0.9, last_epsilon=0.1, exploration_share=0.5)
    learner = dqn.DQN({"agent": policy}, {"agent": 1}, params, torch.Generator().manual_seed(0))
    seen = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        learner.explore(progress)
        seen.append(float(policy.epsilon))
    assert seen == pytest.approx([0.9, 0.5, 0.1, 0.1])


def test_other_action_spaces_are_refused(dqn):
    with pytest.raises(ConfigError, match="DQN needs Discrete actions"):
        relayrl.train("Pendulum-v1", algo="dqn", steps=100, progress=False)


def test_it_learns_cartpole(dqn, tmp_path):
    dqn.main(tmp_path)
    exported = ExportedActor(tmp_path / "dqn.onnx")
    policy = relayrl.load_run(tmp_path / "dqn").policy
    obs = np.random.default_rng(0).uniform(-0.2, 0.2, (50, 4)).astype(np.float32)
    np.testing.assert_array_equal(exported.act_greedily(obs), policy.act_greedily(obs))


def run(path: Path, *, interrupted_at: int | None = None) -> RunResult:
    settings, directory = build_run_settings("CartPole-v1", None, SMALL, []), RunDirectory(path)
    resumes = directory.config.exists()
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        assert engine.resume()
    seen = [0]
    return engine.run(
        lambda progress: seen.__setitem__(0, progress.num_env_steps),
        lambda: interrupted_at is not None and seen[0] >= interrupted_at,
    )


def test_a_resumed_run_ends_as_if_it_had_not_stopped(dqn, tmp_path):
    whole = run(tmp_path / "whole")
    with pytest.raises(RunInterrupted):
        run(tmp_path / "parts", interrupted_at=200)
    resumed = run(tmp_path / "parts")
    assert resumed.parameter_hash == whole.parameter_hash
    assert resumed.returns == whole.returns
