"""Reward signals beside their neighbours: agents that die or wait, records, threads, other algorithms."""

import numpy as np
import pytest

import relayrl

SIGNALS = {"rnd": {"strength": 0.5}, "curiosity": {"strength": 0.5}, "extrinsic": {"strength": 0.0}}
SMALL = {"hidden_sizes": [8], "evaluation.episodes": 2, "time_horizon": 16, "reward_signals": SIGNALS}
TESTING = "relayrl.testing"


def trained(env, algo, path, **settings):
    given = {"algo": algo, "steps": 128, "num_envs": 2, "progress": False, "run_dir": path}
    return relayrl.train(env, settings=SMALL | settings, **given)


@pytest.mark.parametrize(
    ("env", "algo"),
    [
        (f"{TESTING}:DyingAgents", "mappo"),
        (f"{TESTING}:TakingTurns", "ppo"),
        (f"{TESTING}:NestedSpaces", "ppo"),
        ("native:simple_spread", "poca"),
        ("CartPole-v1", "impala"),
    ],
)
def test_signals_work_with_every_kind_of_agent(env, algo, tmp_path):
    run = trained(env, algo, tmp_path / "run")
    for signal in ("rnd", "curiosity"):
        assert run.history[f"signals/{signal}/reward_mean"][-1] > 0.0
        assert np.isfinite(run.history[f"signals/{signal}/loss"]).all()
    assert run.history["signals/extrinsic/reward_mean"][-1] == 0.0


def test_records_and_returns_are_the_environments_own(tmp_path):
    run = trained("native:CartPole", "ppo", tmp_path / "run", record=f"arrow:{tmp_path / 'records'}")
    with relayrl.open_source(f"arrow:{tmp_path / 'records'}") as source:
        rewards = np.concatenate([trajectory.reward for trajectory in source])
    assert (rewards == 1.0).all()
    assert run.history["episode/return_mean"][-1] == run.history["episode/length_mean"][-1]


def test_a_threaded_run_reports_its_signals(tmp_path):
    run = trained("native:CartPole", "ppo", tmp_path / "run", threaded=True)
    assert run.history["signals/rnd/reward_mean"][-1] > 0.0


def test_the_same_seed_gives_the_same_parameters(tmp_path):
    hashes = {trained("native:CartPole", "ppo", tmp_path / str(i)).result.parameter_hash for i in range(2)}
    assert len(hashes) == 1
    other = trained("native:CartPole", "ppo", tmp_path / "other", reward_signals={"rnd": {}})
    assert other.result.parameter_hash not in hashes


def test_a_name_of_relayrl_cannot_be_registered(tmp_path):
    with pytest.raises(relayrl.errors.ConfigError, match="'rnd' is a reward signal of RelayRL"):
        relayrl.extend.register_reward_signal("rnd", dict)
    with pytest.raises(relayrl.errors.UnknownNameError, match="did you mean 'curiosity'"):
        trained("native:CartPole", "ppo", tmp_path / "run", reward_signals={"curiosty": {}})
