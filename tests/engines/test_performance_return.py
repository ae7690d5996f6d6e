"""`performance_return` of every kind of environment reaches statistics, best checkpoint and target; `run_environment` too."""

import numpy as np
import pytest
import rated_environments
from rated_environments import EPISODE, BestReward, FirstPlayerSquared, GymnasiumLength, LastReward, RatedHerd

import relayrl
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import RunInterrupted
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import EnvError, EnvironmentFailedError
from relayrl.testing import Herd, MatrixGame, TakingTurns

QUICK = {"num_envs": 2, "time_horizon": 16, "hidden_sizes": [4], "train_pi_iters": 1, "train_vf_iters": 1}
QUICK |= {"num_minibatches": 1, "evaluation.episodes": 4, "evaluation.interval": 32, "evaluation.interval_episodes": 2}
RATED = {LastReward: 105.0, GymnasiumLength: 105.0, FirstPlayerSquared: 109.0}


def train(env, path, **settings) -> relayrl.Run:
    return relayrl.train(env, steps=96, run_dir=path, settings=QUICK | settings, progress=False)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("env", RATED)
def test_what_an_environment_makes_of_an_episode_is_what_is_reported(env, workers, tmp_path):
    run = train(env, tmp_path / "run", workers=workers)
    rated = RATED[env]
    assert run.result.mean_return == run.result.train_return == run.result.best_return == rated
    assert set(run.result.returns) == {rated}
    assert set(run.history["episode/return_mean"]) == {rated}
    assert [x for x in run.history["evaluation/return_mean"] if x == x] == [rated] * 3
    assert run.result.scored_by == "performance_return of the environment"
    assert run.directory.best_checkpoint().exists()
    assert run.evaluate(episodes=3).returns == (rated,) * 3


def test_a_vector_environment_rates_its_episodes(tmp_path):
    run = train(RatedHerd, tmp_path / "run")
    assert set(run.result.returns) <= {100.0 + length for length in (3, 4, 5)}
    assert run.result.train_return > 100.0


def test_it_decides_the_target(tmp_path):
    run = train(LastReward, tmp_path / "run", target_return=104.0)  # the sum of the rewards is 15
    assert (run.result.num_env_steps, run.result.reached_target) == (32, True)


def test_the_environment_is_asked_unless_the_settings_name_a_score(tmp_path):
    run = train(FirstPlayerSquared, tmp_path / "run", **{"evaluation.agent": "player_1"})
    assert (run.result.mean_return, run.result.scored_by) == (-3.0, "agent player_1, against random")


def test_an_interrupted_episode_is_rated_whole(tmp_path):
    results = []
    for name, num_updates in (("whole", None), ("parts", 1)):
        flags = {"trainer.max_steps": 96}
        settings = build_run_settings(
            "rated_environments:BestReward", None, flags, list((QUICK | {"time_horizon": 7}).items())
        )
        directory = RunDirectory(tmp_path / name)
        directory.create(settings)
        seen = []
        if num_updates is not None:
            with pytest.raises(RunInterrupted):
                LocalEngine(settings, directory).run(seen.append, lambda: len(seen) == num_updates)  # noqa: B023
        engine = LocalEngine(settings, directory)
        assert engine.resume() == (num_updates is not None)
        results.append(engine.run(lambda _: None))
    assert results[0].train_return == results[1].train_return > 50.0
    assert results[0].parameter_hash == results[1].parameter_hash


@pytest.mark.parametrize("workers", [0, 1])
def test_a_rule_that_raises_is_the_environments_failure(workers, tmp_path):
    with pytest.raises(EnvironmentFailedError, match=r"performance_return\(\).*nothing to divide by"):
        train(rated_environments.Failing, tmp_path / "run", workers=workers)


def test_a_vector_environment_plays_an_episode_in_each():
    env = relayrl.make_env(LastReward, num_envs=3)
    played = env.run_environment(lambda groups: {"agent": np.zeros((3, 1), np.int64)}, seed=0)
    assert played == dict.fromkeys(env.env_ids, 105.0)
    cut = env.run_environment(lambda groups: {"agent": np.zeros((3, 1), np.int64)}, max_steps=2)
    assert cut == dict.fromkeys(env.env_ids, 102.0)
    env.close()
    plain = relayrl.make_env(MatrixGame, num_envs=2)
    both = plain.run_environment(lambda groups: {"player": np.ones((2, 2), np.int64)})
    assert set(both.values()) == {-2.0}  # both defect
    plain.close()


def test_environments_of_several_agents_play_an_episode_too():
    assert FirstPlayerSquared().run_environment(lambda seen: dict.fromkeys(seen, 0)) == 109.0
    moves = iter([0, 1, 2, 1, 0, 1])
    turns = TakingTurns().run_environment(lambda seen: {agent: next(moves) for agent in seen})
    assert turns == 2.5  # 0 + 1 + 2 + 1 + 0 + 1 for two players
    assert BestReward().run_environment(lambda seen: 0, seed=3) > 0.0


def test_actions_may_be_given_by_environment():
    by_group, by_id = (relayrl.make_env("CartPole-v1", num_envs=3) for _ in range(2))
    for env in (by_group, by_id):
        env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.integers(2, size=3)
        expected = by_group.step({"agent": actions[:, None]}).groups["agent"].obs
        named = dict(reversed(list(zip(by_id.env_ids, actions.tolist(), strict=True))))  # in any order
        assert np.array_equal(by_id.step(named).groups["agent"].obs, expected)
    with pytest.raises(EnvError, match="name each one"):
        by_id.step({by_id.env_ids[0]: 1})
    for env in (by_group, by_id):
        env.close()


@pytest.mark.parametrize("factory", [MatrixGame, TakingTurns, Herd])
def test_actions_of_several_agents_may_be_given_by_environment(factory):
    env = relayrl.make_env(factory, num_envs=2)
    groups = env.reset(seed=0).groups
    for _ in range(4):
        actions = {}
        for b, env_id in enumerate(env.env_ids):
            actions[env_id] = {
                agent: _allowed(groups[name], group, b, n)
                for name, group in env.groups.items()
                for n, agent in enumerate(group.agent_ids)
                if groups[name].active[b, n]
            }
        groups = env.step(actions).groups
    first = env.env_ids[0]
    with pytest.raises(EnvError, match="acts next and has no action"):
        env.step({env_id: {} if env_id == first else actions[env_id] for env_id in env.env_ids})
    env.close()


def _allowed(view, group, b, n):
    if view.action_mask is None:
        return group.action_space.sample()
    return int(np.argmax(view.action_mask[b, n]))


def test_an_environment_without_a_rule_keeps_no_rewards():
    env = relayrl.make_env("CartPole-v1", num_envs=2)
    assert not env.rates_episodes
    assert env.performance_return({"agent": [1.0, 2.0]}) == 3.0
    env.close()
    assert EPISODE == 5
