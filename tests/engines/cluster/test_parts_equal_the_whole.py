"""Runs whose environments are divided among collectors end with the local engine's parameters, bit for bit."""

import pytest

import relayrl
from fleet_in_process import build
from relayrl.config.plugin_registry import PluginKind, unregister_plugin

SMALL = {
    "num_envs": 5,
    "time_horizon": 12,
    "summary_freq": 60,
    "checkpoint_interval": 120,
    "evaluation.episodes": 2,
    "network.hidden_sizes": [16],
    "tensorboard": False,
}
ON_POLICY = {"train_pi_iters": 2, "train_vf_iters": 2}
REPLAY = {"learning_starts": 40, "batch_size": 16, "update_interval": 20, "train_iters": 2}
STEPS = 240


@pytest.fixture(autouse=True)
def engine():
    relayrl.register_engine("parts", build)
    yield
    unregister_plugin(PluginKind.ENGINE, "parts")


def train(path, env, algo, settings, *, workers=None, **arguments):
    placed = {} if workers is None else {"engine": "parts", "workers": workers}
    chosen = {**SMALL, **settings, **placed}
    return relayrl.train(env, algo=algo, steps=STEPS, run_dir=path, settings=chosen, progress=False, **arguments).result


CASES = {
    "one agent": ("CartPole-v1", "ppo", ON_POLICY),
    "agents and states": ("native:simple_spread", "mappo", ON_POLICY),
    "masks and turns": ("pettingzoo:classic.tictactoe_v3", "ppo", ON_POLICY),
    "agents that die": ("relayrl.testing:DyingAgents", "mappo", ON_POLICY),
    "memory": ("CartPole-v1", "ppo", {**ON_POLICY, "network.memory.size": 8}),
    "nested spaces": ("relayrl.testing:NestedSpaces", "ppo", ON_POLICY),
    "normal actions": ("Pendulum-v1", "ppo", ON_POLICY),
    "corrected": ("CartPole-v1", "impala", {}),
    "a team": ("native:simple_spread", "poca", {}),
    "replay": ("Pendulum-v1", "sac", REPLAY),
    "replay of agents": ("native:simple_spread", "maddpg", {**REPLAY, "environment.options.continuous_actions": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_collectors_learns_the_same(case, tmp_path):
    env, algo, settings = CASES[case]
    whole = train(tmp_path / "whole", env, algo, settings)
    for workers in (1, 2, 3):
        parts = train(tmp_path / f"parts{workers}", env, algo, settings, workers=workers)
        assert parts.parameter_hash == whole.parameter_hash, workers
        assert (parts.returns, parts.train_return) == (whole.returns, pytest.approx(whole.train_return, nan_ok=True))
