"""Algorithms with replay, several behaviours and joint transitions, from remote actors."""

import threading

import numpy as np
import pytest
from remote_parts import QUIET

from relayrl.data.stacking import joint_envs
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError
from relayrl.runtime.remote.remote_actor import RemoteActorSettings, run_remote_actor
from relayrl.servers.training.training_server import TrainingServer
from relayrl.sinks.contract import open_source
from relayrl.training.trainers.policy_trainer import PolicyTrainer
from waiting import DEADLINE_S


def served(tmp_path, env, algo, steps, num_actors=2, **settings):
    """The run directory and result of a served run, and what its trainer was given."""
    bind = "tcp://127.0.0.1:0"
    options = {"settings": {**QUIET, **settings}, "steps": steps, "run_dir": tmp_path / "run"}
    with TrainingServer(env, algo=algo, bind=bind, **options) as server:
        server.start()
        own = RemoteActorSettings(environment=EnvSettings(num_envs=2))
        where = {"spool_base": tmp_path / "spool", "settings": own}
        actors = [
            threading.Thread(target=run_remote_actor, args=(env, server.address), kwargs={**where, "seed": i})
            for i in range(num_actors)
        ]
        for actor in actors:
            actor.start()
        result = server.wait(DEADLINE_S)
        for actor in actors:
            actor.join(DEADLINE_S)
        return server, result


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_algorithms_with_replay_learn_from_remote_actors(tmp_path, algo):
    starts = {"params.learning_starts": 128, "params.batch_size": 16, "environment.num_envs": 2}
    server, result = served(tmp_path, "Pendulum-v1", algo, 600, **starts)
    assert result.num_env_steps >= 600
    assert server.metrics.updates.value > 100
    assert server.metrics.stale.value == 0


@pytest.mark.parametrize(("env", "groups"), [("native:simple_spread", 1), ("native:simple_adversary", 2)])
def test_joint_transitions_of_all_behaviours_are_rebuilt(tmp_path, monkeypatch, env, groups):
    given = []
    receive = PolicyTrainer.receive

    def noted(self, rollouts):
        given.append(rollouts)
        receive(self, rollouts)

    monkeypatch.setattr(PolicyTrainer, "receive", noted)
    small = {"trainer.time_horizon": 16, "environment.num_envs": 2}
    server, result = served(tmp_path, env, "mappo", 96, **small)
    assert result.num_env_steps >= 96
    assert server.metrics.invalid.value == 0
    with open_source(f"arrow:{server.run_dir / 'journal'}") as source:
        stored = list(source)
    assert len({t.group for t in stored}) == groups
    num_agents = len({(t.group, t.agent_id) for t in stored})
    for together in joint_envs(stored):  # every agent of an environment's episode is there, as far as the others
        assert len({(t.group, t.agent_id) for t in together}) == num_agents
    for rollouts in given:  # all of an update's agents are side by side, and act on the same rows
        assert len(rollouts) == groups
        valid = [rollout.joint(rollout.valid) for rollout in rollouts.values()]
        first = valid[0][..., :1]
        assert all(np.array_equal(each, np.broadcast_to(first, each.shape)) for each in valid)


def test_vtrace_learns_from_data_of_any_age(tmp_path):
    server, result = served(tmp_path, "CartPole-v1", "impala", 2_000, **{"trainer.time_horizon": 16})
    assert result.num_env_steps >= 1_900
    assert server.metrics.stale.value == 0
    assert server.metrics.updates.value >= 10


def test_an_actor_of_another_environment_is_told_so(tmp_path):
    with TrainingServer(
        "CartPole-v1", bind="tcp://127.0.0.1:0", run_dir=tmp_path / "run", steps=1_000_000, settings=QUIET
    ) as server:
        server.start()
        with pytest.raises(ConfigError, match="play CartPole-v1"):
            run_remote_actor("Acrobot-v1", server.address, spool_base=tmp_path / "spool")


def test_the_loser_of_a_game_of_turns_gets_its_reward_and_its_end(tmp_path):
    env = "pettingzoo:classic.tictactoe_v3"
    options = {
        "settings": {**QUIET, "trainer.time_horizon": 64, "environment.num_envs": 2},
        "run_dir": tmp_path / "run",
    }
    with TrainingServer(env, algo="ppo", bind="tcp://127.0.0.1:0", steps=1_000_000, **options) as server:
        server.start()
        own = RemoteActorSettings(environment=EnvSettings(num_envs=2))
        where = {"spool_base": tmp_path / "spool", "settings": own, "seed": 1}
        run_remote_actor(env, server.address, max_steps=600, block_steps=3, **where)
    games: dict = {}
    with open_source(f"arrow:{tmp_path / 'run' / 'journal'}") as source:
        for trajectory in source:
            game = games.setdefault((trajectory.env_id, trajectory.episode), {"return": 0.0, "ended": set()})
            game["return"] += trajectory.episode_return
            if trajectory.terminated:
                game["ended"].add(trajectory.agent_id)
    whole = [game for (env_id, episode), game in games.items() if (env_id, episode + 1) in games]
    assert len(whole) > 50
    assert [game for game in whole if len(game["ended"]) != 2 or game["return"] != 0.0] == []


def test_callbacks_see_and_stop_a_served_run(tmp_path):
    seen = []

    def stop_soon(run):
        seen.append((run.policy_version, run.num_env_steps))
        run.log("mine/version", run.policy_version)
        if run.policy_version == 3:
            run.stop()

    options = {"settings": {**QUIET, "trainer.time_horizon": 32}, "run_dir": tmp_path / "run", "callbacks": [stop_soon]}
    with TrainingServer("CartPole-v1", bind="tcp://127.0.0.1:0", steps=1_000_000, **options) as server:
        server.start()
        where = {"spool_base": tmp_path / "spool", "settings": RemoteActorSettings(environment=EnvSettings(num_envs=2))}
        actor = threading.Thread(target=run_remote_actor, args=("CartPole-v1", server.address), kwargs=where)
        actor.start()
        result = server.wait(DEADLINE_S)
        actor.join(DEADLINE_S)
    assert [version for version, _ in seen] == [1, 2, 3]
    assert result.num_env_steps == seen[-1][1]
    assert "mine/version" in (tmp_path / "run" / "progress.csv").read_text()
