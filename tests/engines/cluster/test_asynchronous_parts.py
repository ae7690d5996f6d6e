"""Asynchronous collection: what arrives is learned from, in whatever order, and nobody waits for the slow."""

import csv
import json

import pytest
from fleet_in_process import InProcess

import relayrl
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.engines.cluster.cluster_parts import build_cluster_parts
from relayrl.errors import ConfigError
from relayrl.sinks.contract import open_source

SMALL = {
    "num_envs": 6,
    "workers": 3,
    "engine": "parts",
    "cluster.asynchronous": True,
    "time_horizon": 10,
    "summary_freq": 60,
    "checkpoint_interval": 120,
    "evaluation.episodes": 2,
    "network.hidden_sizes": [16],
    "tensorboard": False,
}
REPLAY = {"learning_starts": 40, "batch_size": 16, "update_interval": 20, "train_iters": 1, "cluster.rollout_steps": 10}


@pytest.fixture
def fleets():
    """Fleets of the runs of a test, whose third member is slow."""
    made = []

    def make(plans):
        made.append(InProcess(plans, slow=frozenset({2})))
        return made[-1]

    relayrl.extend.register_engine("parts", lambda settings: build_cluster_parts(settings, make))
    yield made
    unregister_plugin(PluginKind.ENGINE, "parts")


def train(path, env, algo, steps=600, settings=None, **arguments):
    chosen = {**SMALL, **(settings or {})}
    return relayrl.train(env, algo=algo, steps=steps, run_dir=path, settings=chosen, progress=False, **arguments).result


def rows(path):
    with open(path / "progress.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("env", "algo", "settings"),
    [
        ("CartPole-v1", "impala", {}),
        ("native:simple_spread", "maappo", {}),
        ("pettingzoo:classic.tictactoe_v3", "impala", {}),
        ("relayrl.testing:DyingAgents", "appo", {}),
        ("Pendulum-v1", "sac", REPLAY),
        ("native:simple_spread", "maddpg", {**REPLAY, "environment.options.continuous_actions": True}),
    ],
)
def test_the_slow_hold_up_nobody_and_lag_is_reported(env, algo, settings, tmp_path, fleets):
    result = train(tmp_path / "run", env, algo, settings=settings)
    assert 600 <= result.num_env_steps < 720
    assert fleets[0].most_flights == 2
    lags = [float(row["policy/lag_versions"]) for row in rows(tmp_path / "run") if row.get("policy/lag_versions")]
    assert lags
    assert max(lags) > 0


def test_steps_that_are_too_old_are_dropped_and_counted(tmp_path, fleets):
    train(tmp_path / "run", "CartPole-v1", "impala", settings={"params.max_policy_lag": 0})
    assert sum(float(row["data/dropped_stale_steps"] or 0) for row in rows(tmp_path / "run")) > 0


def test_records_hold_every_lane_without_a_gap_also_after_a_resume(tmp_path, fleets):
    record = {"record": f"arrow:{tmp_path / 'steps'}"}
    train(tmp_path / "run", "CartPole-v1", "impala", steps=300, settings=record)
    train(tmp_path / "run", "CartPole-v1", "impala", settings={**record, **{"trainer.max_steps": 600}}, resume=True)
    expected: dict = {}
    with open_source(f"arrow:{tmp_path / 'steps'}") as source:
        for trajectory in sorted(source, key=lambda each: (each.env_id, each.episode, each.first_step)):
            lane = (trajectory.env_id, trajectory.episode)
            assert trajectory.first_step == expected.get(lane, 0)
            expected[lane] = trajectory.first_step + len(trajectory)
    assert sum(expected.values()) >= 600
    assert len({env_id for env_id, _ in expected}) == 6


@pytest.mark.parametrize("algo", ["ppo", "reinforce"])
def test_algorithms_that_do_not_correct_for_lag_are_refused(algo, tmp_path, fleets):
    with pytest.raises(ConfigError, match="does not correct for steps of older policies"):
        train(tmp_path / "run", "CartPole-v1", algo)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_evaluated_and_exported_without_its_engine(tmp_path, fleets):
    train(tmp_path / "run", "Pendulum-v1", "sac", settings=REPLAY)
    unregister_plugin(PluginKind.ENGINE, "parts")
    relayrl.extend.register_engine("parts", lambda settings: pytest.fail("built"))
    run = relayrl.load_run(tmp_path / "run")
    assert run.export(tmp_path / "policy.onnx") == [tmp_path / "policy.onnx"]
    assert len(run.evaluate(episodes=2).returns) == 2
    assert json.loads(run.result.to_json())["num_env_steps"] >= 600
