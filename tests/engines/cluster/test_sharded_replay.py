"""Replay that the collectors keep: who holds what, what the learner draws, and that runs are repeatable and resumable."""

import numpy as np
import pytest
from fleet_in_process import InProcess

import relayrl
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.engines.cluster.cluster_parts import build_cluster_parts
from relayrl.errors import ConfigError, RelayRLError
from relayrl.extend import make_run_parts
from relayrl.training.replay.sharded_replay import ReplayDraws, draw_from, joined, rows_of_shards, shard_capacity

SMALL = {
    "num_envs": 5,
    "workers": 3,
    "engine": "parts",
    "cluster.replay": "sharded",
    "summary_freq": 60,
    "checkpoint_interval": 60,
    "evaluation.episodes": 2,
    "network.hidden_sizes": [16],
    "tensorboard": False,
    "learning_starts": 40,
    "batch_size": 16,
    "update_interval": 20,
    "train_iters": 2,
    "buffer_size": 200,
}
CASES = {
    "one agent": ("Pendulum-v1", "sac", {}),
    "agents": ("native:simple_spread", "maddpg", {"environment.options.continuous_actions": True}),
    "n steps": ("Pendulum-v1", "td3", {"num_step_returns": 3}),
    "agents that die": ("relayrl.testing:DyingAgents", "masac", {}),
    "goals": ("relayrl.testing:PointReach", "sac", {"hindsight_ratio": 0.5}),
}


@pytest.fixture(autouse=True)
def fleets():
    made = []

    def make(plans):
        made.append(InProcess(plans))
        return made[-1]

    relayrl.extend.register_engine("parts", lambda settings: build_cluster_parts(settings, make))
    yield made
    unregister_plugin(PluginKind.ENGINE, "parts")


def train(path, env, algo, settings=None, steps=300, **arguments):
    chosen = {**SMALL, **(settings or {})}
    return relayrl.train(env, algo=algo, steps=steps, run_dir=path, settings=chosen, progress=False, **arguments).result


def interrupt_at(steps):
    def callback(run):
        if run.num_env_steps >= steps:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize(
    ("num_rows", "bounds", "rows"),
    [(16, [0, 1, 3, 5], (3, 6, 7)), (256, [0, 4, 8], (128, 128)), (10, [0, 1], (10,)), (3, [0, 1, 2, 3], (1, 1, 1))],
)
def test_shards_give_rows_in_proportion_to_their_environments(num_rows, bounds, rows):
    assert rows_of_shards(num_rows, bounds) == rows
    assert sum(rows) == num_rows


def test_capacity_is_shared_by_environments():
    assert [shard_capacity(200, first, last, 5) for first, last in ((0, 1), (1, 3), (3, 5))] == [40, 80, 80]


@pytest.mark.parametrize("case", CASES)
def test_runs_with_shards_are_repeatable_and_resumed_to_the_same_parameters(case, tmp_path, fleets):
    env, algo, settings = CASES[case]
    whole = train(tmp_path / "whole", env, algo, settings)
    again = train(tmp_path / "again", env, algo, settings)
    assert again.parameter_hash == whole.parameter_hash
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", env, algo, settings, callbacks=[interrupt_at(180)])
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False, trust=True).result
    assert resumed.parameter_hash == whole.parameter_hash
    untouched = relayrl.train(
        env, algo=algo, steps=20, run_dir=tmp_path / "short", settings={**SMALL, **settings}, progress=False
    ).result
    assert untouched.parameter_hash != whole.parameter_hash  # it has learned


def test_every_collector_keeps_the_steps_of_its_own_environments(tmp_path, fleets):
    train(tmp_path / "run", "Pendulum-v1", "sac", steps=300)
    shards = [member._shard for member in fleets[0].members]
    assert [(shard.num_envs, shard.capacity, len(shard)) for shard in shards] == [
        (1, 40, 40),
        (2, 80, 80),
        (2, 80, 80),
    ]
    assert "replay/size" in (tmp_path / "run" / "progress.csv").read_text()


def test_a_joined_batch_has_each_shards_rows_in_order():
    settings = {**SMALL, "engine": "local", "workers": 0, "num_envs": 2}
    parts = make_run_parts("Pendulum-v1", algo="sac", settings=settings)
    try:
        shards = [parts.trainer.replay, parts.trainer._empty_replay(2)]
        for shard in shards:
            for _ in range(5):
                shard.add(parts.collector.collect(0))
        draws = ReplayDraws(2, (3, 5), (7, 100), 0.99, 1)
        drawn = [draw_from(shard, draws, which) for which, shard in enumerate(shards)]
        assert [each.size for each in drawn] == [len(shard) for shard in shards]
        batch = joined([each.batches[0] for each in drawn])
        assert len(batch) == 8
        for which, rows in ((0, slice(0, 3)), (1, slice(3, 8))):
            own = drawn[which].batches[0].groups["agent"]
            assert np.array_equal(batch.groups["agent"].obs[rows], own.obs)
            assert np.array_equal(batch.groups["agent"].reward[rows], own.reward)
        same = draw_from(shards[0], draws, 0).batches[1].groups["agent"].obs
        assert np.array_equal(same, drawn[0].batches[1].groups["agent"].obs)
        later = draw_from(shards[0], ReplayDraws(2, (3, 5), (7, 120), 0.99, 1), 0).batches[1].groups["agent"].obs
        assert not np.array_equal(same, later)
    finally:
        parts.close()


@pytest.mark.parametrize(
    ("algo", "settings", "says"),
    [
        ("ppo", {}, "ppo keeps no replay"),
        ("sac", {"cluster.asynchronous": True}, "draws from all shards behind the same step"),
        ("sac", {"priority_exponent": 0.6}, "priorities change with every gradient step"),
        ("sac", {"reward_signals": {"extrinsic": {}, "rnd": {}}}, "shards keep the environment's own rewards"),
        ("sac", {"batch_size": 2}, "a batch of 2 cannot have a transition of each of 3 shards"),
    ],
)
def test_what_shards_cannot_do_is_refused(algo, settings, says, tmp_path):
    replay = ("learning_starts", "batch_size", "update_interval", "train_iters", "buffer_size")
    chosen = {key: value for key, value in SMALL.items() if algo != "ppo" or key not in replay}
    with pytest.raises(ConfigError, match=says):
        relayrl.train(
            "Pendulum-v1",
            algo=algo,
            steps=60,
            run_dir=tmp_path / "run",
            settings={**chosen, **settings},
            progress=False,
        )


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"workers": 2}, "3 shards, and the run 2 collectors"), ({"cluster.replay": "learner"}, "cluster.replay")],
)
def test_a_run_is_resumed_with_the_shards_that_it_had(settings, says, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", "Pendulum-v1", "sac", callbacks=[interrupt_at(120)])
    with pytest.raises(RelayRLError, match=says):
        relayrl.train(run_dir=tmp_path / "run", resume=True, settings=settings, progress=False, trust=True)
