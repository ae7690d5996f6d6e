"""An agent that trains: the loop of a program that owns its simulator, from public names only."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from relayrl import (
    AgentBuilder,
    NetworkSettings,
    PPOParams,
    RelayRLAgent,
    RelayRLTrainer,
    SACParams,
    TD3Params,
    TrainerArgs,
    TrainerSettings,
    open_source,
)
from relayrl.errors import AgentStateError, BufferFullError, ConfigError, LearningError
from relayrl.extend import make_run_parts
from relayrl.models.policy import parameter_hash
from waiting import wait_until

SMALL = NetworkSettings(hidden_sizes=(16,))
QUICK = PPOParams(traj_per_epoch=4, train_pi_iters=2, train_vf_iters=2)
LENGTH = 10


def make_trainer(folder: Path, algo: str = "ppo", params: Any = QUICK, threaded: bool = False, **more: Any) -> Any:
    schedule = TrainerSettings(threaded=threaded, max_steps=more.pop("max_steps", 500_000))
    given = {"obs_dim": 2, "act_dim": 2, "network": SMALL} | more
    return getattr(RelayRLTrainer, algo)(TrainerArgs("walk", folder, trainer_settings=schedule, **given), params)


def play(agent: RelayRLAgent, ids: Any, episodes: int = 1, seed: int = 0) -> None:
    """Episodes of ten steps; the reward is for the second action."""
    rng = np.random.default_rng(seed)
    for _ in range(episodes):
        reward = None
        for _ in range(LENGTH):
            record = agent.request_action(ids, rng.normal(size=(len(ids), 2)).astype(np.float32), reward=reward)
            reward = record.action.reshape(len(ids), -1)[:, 0].astype(np.float32)
        agent.flag_last_action(ids, reward=reward)


def test_what_was_learned_acts_next(tmp_path):
    trainer = make_trainer(tmp_path)
    with AgentBuilder().actor_count(2).trainer(trainer).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        for epoch in range(3):
            assert set(agent.get_model_version().values()) == {epoch}
            play(agent, ids, episodes=2, seed=epoch)
        assert trainer.policy_version == 3
        new = agent.new_actor()
        assert agent.get_model_version([new]) == {new: 3}
    assert trainer.get_step == 3 * 4 * LENGTH
    assert trainer.num_pending == 0


def test_one_thread_is_repeatable_bit_for_bit(tmp_path):
    found = set()
    for name in ("one", "other"):
        trainer = make_trainer(tmp_path / name)
        with AgentBuilder().actor_count(4).trainer(trainer).seed(0).build() as agent:
            play(agent, agent.get_actor_ids(), episodes=3)
        found.add(parameter_hash(trainer.policies["agent"]))
    assert len(found) == 1


def test_it_learns_what_the_verbs_learn(tmp_path):
    """The agent adds nothing and leaves nothing out: the recorded trajectories give the same parameters."""
    one, other = make_trainer(tmp_path / "one"), make_trainer(tmp_path / "other")
    url = f"arrow:{tmp_path / 'records'}"
    with AgentBuilder().trainer(one).sink(url).seed(0).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=12)
    with open_source(url) as source:
        for trajectory in source:
            if other.receive_trajectory(trajectory):
                other.train_model()
    assert one.policy_version == other.policy_version == 3
    assert parameter_hash(one.policies["agent"]) == parameter_hash(other.policies["agent"])


@pytest.mark.parametrize("threaded", [False, True])
def test_sinks_get_everything_too(threaded, tmp_path):
    trainer, url = make_trainer(tmp_path, threaded=threaded), f"arrow:{tmp_path / 'records'}"
    with AgentBuilder().actor_count(3).router_scale(2).trainer(trainer).sink(url).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=10)
        report = agent.shutdown()
    assert report.is_clean
    with open_source(url) as source:
        assert source.count().num_trajectories == 30
    assert trainer.get_step + LENGTH * trainer.num_pending == 30 * LENGTH


def test_a_thread_of_its_own_learns_beside_the_actors(tmp_path):
    trainer = make_trainer(tmp_path, threaded=True)
    with AgentBuilder().actor_count(2).trainer(trainer).build() as agent:
        ids = agent.get_actor_ids()
        play(agent, ids, episodes=2)
        wait_until(lambda: set(agent.get_model_version().values()) == {1})
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("relayrl-learner") == 1
    assert "relayrl-learner" not in [thread.name for thread in threading.enumerate()]


class Slow:
    """A learner that takes what it is given when it may."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.may_go_on, self.num_received = trainer, threading.Event(), 0
        self.threaded, self.policy_version = True, 0

    def bound_policy_lag(self, max_policy_lag: int) -> None:
        assert max_policy_lag == 1

    def receive_trajectory(self, trajectory: Any) -> bool:
        assert self.may_go_on.wait(60)
        self.num_received += 1
        return False

    def advance(self) -> None:
        pass

    def live_policies(self) -> Any:
        return self._trainer.live_policies()

    def group_of(self, agent_id: str) -> str:
        return "agent"


def test_actors_wait_for_a_learner_that_is_behind(tmp_path):
    slow = Slow(make_trainer(tmp_path))
    with AgentBuilder().trainer(slow, queue_size=2).build() as agent:
        ids = agent.get_actor_ids()
        play(agent, ids, episodes=2)
        waiting = threading.Thread(target=play, args=(agent, ids))
        waiting.start()
        wait_until(lambda: agent.metrics["runtime/push_backs_total"].read() > 0)
        assert waiting.is_alive()
        assert slow.num_received == 0
        slow.may_go_on.set()
        waiting.join(60)
        assert not waiting.is_alive()
    assert slow.num_received == 3


def test_waiting_for_a_learner_ends(tmp_path):
    slow, config = Slow(make_trainer(tmp_path)), tmp_path / "config.json"
    config.write_text('{"router_buffer": {"push_back_timeout_s": 0.0}, "shutdown_deadline_s": 0.1}')
    agent = AgentBuilder().config_path(config).trainer(slow, queue_size=1).build()
    agent.start()
    ids = agent.get_actor_ids()
    play(agent, ids)
    with pytest.raises(BufferFullError, match="wait for the trainer"):
        play(agent, ids)
    report = agent.shutdown()
    assert not report.is_clean
    assert [len(each) for each in report.unlearned] == [LENGTH]
    slow.may_go_on.set()


@pytest.mark.parametrize("threaded", [False, True])
def test_what_the_learner_raises_reaches_whoever_acts(threaded, tmp_path):
    trainer = make_trainer(tmp_path, threaded=threaded, buffer_size=2 * LENGTH)  # room for half an epoch
    with AgentBuilder().trainer(trainer).build() as agent:
        ids = agent.get_actor_ids()
        with pytest.raises(LearningError, match="buffer_size 20") as raised:
            play(agent, ids, episodes=1000)
        assert isinstance(raised.value.__cause__, ConfigError)
        with pytest.raises(LearningError):
            play(agent, ids)
        report = agent.shutdown()
    assert isinstance(report.learning_error, ConfigError)
    assert len(report.unlearned) >= 1
    assert not report.is_clean


def test_ctrl_c_in_an_update_ends_learning(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "advance", interrupted)
    agent = AgentBuilder().trainer(trainer).build()
    with pytest.raises(KeyboardInterrupt), agent:
        play(agent, agent.get_actor_ids())
    assert isinstance(agent.shutdown().learning_error, type(None))  # it was shut down before, and said so in the log
    with pytest.raises(AgentStateError):
        play(agent, agent.get_actor_ids())


def test_what_ctrl_c_left_of_an_update_is_not_saved(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    trainer.save_model()
    before = parameter_hash(trainer.policies["agent"])
    learn = trainer.learner.advance

    def interrupted() -> None:
        learn()
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer.learner, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt), AgentBuilder().trainer(trainer).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=4)
    for use in (trainer.save_model, AgentBuilder().trainer(trainer).build):
        with pytest.raises(LearningError, match=r"load\(\) a checkpoint"):
            use()
    trainer.load()
    assert parameter_hash(trainer.policies["agent"]) == before
    with AgentBuilder().trainer(trainer).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=4)
    assert trainer.policy_version == 1


def test_episodes_under_way_reach_the_trainer_at_shutdown(tmp_path):
    trainer = make_trainer(tmp_path)
    with AgentBuilder().trainer(trainer).build() as agent:
        agent.request_action(agent.get_actor_ids(), np.zeros((1, 2), np.float32))
        agent.request_action(agent.get_actor_ids(), np.zeros((1, 2), np.float32), reward=1.0)
        report = agent.shutdown()
    assert report.is_clean
    assert trainer.num_pending == 1


def test_an_agent_goes_on_with_a_trainer_that_was_loaded(tmp_path):
    trainer = make_trainer(tmp_path)
    with AgentBuilder().trainer(trainer).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=9)
    trainer.save_model()
    again = make_trainer(tmp_path)
    again.load()
    with AgentBuilder().trainer(again).build() as agent:
        assert set(agent.get_model_version().values()) == {2}
        play(agent, agent.get_actor_ids(), episodes=3)
    assert (again.policy_version, again.get_step) == (3, 12 * LENGTH)


def test_a_trainer_joins_an_agent_that_runs(tmp_path):
    trainer = make_trainer(tmp_path)
    file = make_trainer(tmp_path / "other", seed=5).acquire_model("onnx").path
    with AgentBuilder().default_model(file).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        play(agent, ids)
        agent.train_with(trainer)
        obs = np.ones((1, 2), np.float32)
        record = agent.request_action(ids, obs)
        of_trainer = trainer.actor().distribution(obs)[
            0, record.action[0]
        ]  # a log-probability; the file has other ones
        assert record.logp == pytest.approx(of_trainer, rel=1e-5)
        agent.flag_last_action(ids)
        play(agent, ids, episodes=4)
        assert trainer.policy_version == 1
        with pytest.raises(ConfigError, match="has a trainer already"):
            agent.train_with(trainer)


def test_a_policy_that_does_not_fit_the_actors_is_not_published(tmp_path):
    file = make_trainer(tmp_path, obs_dim=2, act_dim=7).acquire_model("onnx").path
    with pytest.raises(ConfigError, match=r"give default_model\(\) or trainer\(\), not both"):
        AgentBuilder().default_model(file).trainer(make_trainer(tmp_path)).build()


def test_restart_goes_on_learning(tmp_path):
    trainer = make_trainer(tmp_path, threaded=True)
    with AgentBuilder().trainer(trainer).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=2)
        assert agent.restart().is_clean
        play(agent, agent.get_actor_ids(), episodes=2)
    assert trainer.policy_version == 1


def test_fragments_are_learned_from(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"max_traj_length": 4}')
    trainer = make_trainer(tmp_path)
    with AgentBuilder().config_path(config).trainer(trainer).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=4)
    assert trainer.get_step + sum(len(t) for t in trainer.update_buffer.state()[0]) == 4 * LENGTH
    assert trainer.log_epoch()["episode/length_mean"] == LENGTH


@pytest.mark.parametrize(
    ("algo", "params"),
    [
        ("td3", TD3Params(learning_starts=30, batch_size=8, buffer_size=1000)),
        ("sac", SACParams(learning_starts=30, batch_size=8)),
    ],
)
def test_replay_warms_up_and_then_explores(algo, params, tmp_path):
    """Uniform actions before `learning_starts`; then those of the policy, with its noise."""
    trainer = make_trainer(tmp_path, algo, params, act_dim=1)
    with AgentBuilder().trainer(trainer).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        first = [float(agent.request_action(ids, np.zeros((1, 2), np.float32)).action[0, 0]) for _ in range(200)]
        agent.flag_last_action(ids)
        assert trainer.policy_version > 0
        later = [float(agent.request_action(ids, np.zeros((1, 2), np.float32)).action[0, 0]) for _ in range(200)]
    assert abs(np.std(first) - 1 / np.sqrt(3)) < 0.1  # uniform in [-1, 1]
    assert np.std(later) > 0.02
    if algo == "td3":
        assert np.std(later) < 0.2  # exploration_noise is 0.1


def test_masks_are_asked_for(tmp_path):
    trainer = make_trainer(tmp_path, masks_actions=True)
    with AgentBuilder().trainer(trainer).build() as agent:
        ids, obs, mask = agent.get_actor_ids(), np.zeros((1, 2), np.float32), [[False, True]]
        for _ in range(4):
            assert agent.request_action(ids, obs, mask=mask).action == [1]
            agent.flag_last_action(ids, final_obs=obs, final_mask=mask)
        with pytest.raises(ConfigError, match="give request_action"):
            agent.request_action(ids, obs)
    assert trainer.policy_version == 1


def test_policies_with_a_memory_learn_in_agents(tmp_path):
    network = NetworkSettings(hidden_sizes=(8,), memory={"size": 4})
    trainer = make_trainer(tmp_path, network=network)
    with AgentBuilder().actor_count(2).trainer(trainer).build() as agent:
        play(agent, agent.get_actor_ids(), episodes=4)
    assert trainer.policy_version == 2


def test_threads_of_actors_learn_together(tmp_path):
    trainer = make_trainer(tmp_path, threaded=True)
    with AgentBuilder().actor_count(8).trainer(trainer).build() as agent:
        threads = [
            threading.Thread(target=play, args=(agent, (actor_id,), 20, i))
            for i, actor_id in enumerate(agent.get_actor_ids())
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        report = agent.shutdown()
    assert report.is_clean
    row = trainer.log_epoch()
    waiting = sum(len(t) for t in trainer.update_buffer.state()[0])
    assert trainer.get_step + waiting == 160 * LENGTH
    assert row["episode/count"] == 160


@pytest.mark.parametrize("threaded", [False, True])
def test_tasks_of_asyncio_learn_together(threaded, tmp_path):
    trainer = make_trainer(tmp_path, threaded=threaded)

    async def walk(agent: RelayRLAgent, actor_id: Any, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(5):
            reward = None
            for _ in range(LENGTH):
                obs = rng.normal(size=(1, 2)).astype(np.float32)
                record = await agent.aio.request_action((actor_id,), obs, reward=reward)
                reward = float(record.action[0])
            await agent.aio.flag_last_action((actor_id,), reward=reward)

    async def main() -> None:
        agent = AgentBuilder().actor_count(8).trainer(trainer).build()
        async with agent.aio:
            await asyncio.gather(*(walk(agent, each, i) for i, each in enumerate(agent.get_actor_ids())))

    asyncio.run(main())
    row = trainer.log_epoch()
    waiting = sum(len(t) for t in trainer.update_buffer.state()[0])
    assert row["episode/count"] == 40
    assert trainer.get_step + waiting == 40 * LENGTH
    assert trainer.policy_version > 0


def test_environments_may_bound_what_a_trainer_of_numbers_observes(tmp_path):
    trainer = make_trainer(tmp_path, obs_dim=4)
    with AgentBuilder().trainer(trainer).seed(0).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, "CartPole-v1", 4)
        agent.run_env(actor_id, 64)
        assert trainer.policy_version == 1
        with pytest.raises(ConfigError, match="group 'agent' of the environment"):
            agent.set_env(actor_id, "Acrobot-v1")


def test_environments_of_actors_are_learned_from(tmp_path):
    space = gymnasium.make("CartPole-v1").observation_space
    trainer = make_trainer(tmp_path, obs_dim=None, observation_space=space)
    with AgentBuilder().trainer(trainer).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, "CartPole-v1", 2)
        agent.run_env(actor_id, 300)
    assert trainer.policy_version > 0
    assert trainer.log_epoch()["episode/count"] > 8


def play_in_turn(agent: RelayRLAgent, ids: list[Any]) -> None:
    """An episode of one environment, with a request for each of its actors."""
    rewards: list[Any] = [None] * len(ids)
    for t in range(LENGTH):
        for i, actor_id in enumerate(ids):
            record = agent.request_action((actor_id,), np.full((1, 2), t, np.float32), reward=rewards[i])
            rewards[i] = float(record.action.reshape(-1)[0])
    for actor_id, reward in zip(ids, rewards, strict=True):
        agent.flag_last_action((actor_id,), reward=reward)


def team(folder: Path, algo: str, params: Any, **more: Any) -> Any:
    trainer = make_trainer(folder, algo, params, **more)
    trainer.register_agent("left")
    trainer.register_agent("right", action_space=spaces.Discrete(3) if params is QUICK else None)
    return trainer


SLOW_START = SACParams(learning_starts=10, batch_size=8)


@pytest.mark.parametrize(("algo", "params"), [("mappo", QUICK), ("ippo", QUICK), ("masac", SLOW_START)])
@pytest.mark.parametrize("threaded", [False, True])
def test_several_agents_have_a_policy_each(algo, params, threaded, tmp_path):
    """Agents of four environments, asked one by one; replay and critics see both of every step."""
    trainer = team(tmp_path, algo, params, threaded=threaded, act_dim=2)
    with AgentBuilder().actor_count(0).trainer(trainer).build() as agent:
        envs = [uuid4() for _ in range(4)]
        ids = {env: [agent.new_actor(agent_id=name, env_id=env) for name in ("left", "right")] for env in envs}
        for _ in range(5):
            for pair in ids.values():
                play_in_turn(agent, pair)
        report = agent.shutdown()
    assert report.is_clean
    row = trainer.log_epoch()
    assert row["episode/count"] == 40
    assert (row["epoch/num_held"], row["epoch/num_incomplete"]) == (0, 0)
    assert trainer.policy_version > 0
    if algo == "masac":
        replay = trainer.learner.replay
        assert len(replay) == 20 * LENGTH
        assert all(column.all() for name, column in replay.get_state()["arrays"].items() if "valid" in name)


def test_several_policies_need_agents_by_name(tmp_path):
    trainer = team(tmp_path, "mappo", QUICK)
    with pytest.raises(ConfigError, match=r"new_actor\(agent_id=…\)"):
        AgentBuilder().trainer(trainer).build()
    with AgentBuilder().actor_count(0).trainer(trainer).build() as agent:
        with pytest.raises(ConfigError, match="'middle' is not registered"):
            agent.new_actor(agent_id="middle")
        env = uuid4()
        agent.new_actor(agent_id="left", env_id=env)
        with pytest.raises(ConfigError, match="has an agent 'left' already"):
            agent.new_actor(agent_id="left", env_id=env)


def test_a_shared_policy_is_for_agents_by_name_too(tmp_path):
    trainer = make_trainer(tmp_path, "mappo")
    for name in ("left", "right"):
        trainer.register_agent(name, "both")
    with pytest.raises(ConfigError, match=r"new_actor\(agent_id=…\)"):
        AgentBuilder().actor_count(2).trainer(trainer).build()
    with AgentBuilder().actor_count(0).trainer(trainer).build() as agent:
        env = uuid4()
        for given in ({}, {"model": trainer.policies["both"], "group": "both"}):
            with pytest.raises(ConfigError, match="'lft' is not registered"):
                agent.new_actor(agent_id="lft", env_id=env, **given)
        with pytest.raises(ConfigError, match=r"new_actor\(agent_id=…\)"):
            agent.new_actor()
        assert agent.get_actor_ids() == ()
        ids = [agent.new_actor(agent_id=name, env_id=env) for name in ("left", "right")]
        for _ in range(4):
            play_in_turn(agent, ids)
    assert trainer.policy_version == 1


@pytest.mark.parametrize("other", [{"obs_dim": 3}, {"act_dim": 3}])
def test_actors_that_the_trainer_could_not_learn_from_are_refused(other, tmp_path):
    trainer, misfit = make_trainer(tmp_path / "one"), make_trainer(tmp_path / "other", **other)
    file = trainer.acquire_model("onnx").path
    with AgentBuilder().default_model(file).build() as agent:
        with pytest.raises(ConfigError, match="give the trainer the actor's spaces"):
            agent.train_with(misfit)
        agent.train_with(trainer)
        with pytest.raises(ConfigError, match="give the trainer the actor's spaces"):
            agent.new_actor(model=misfit.policies["agent"])
        play(agent, agent.get_actor_ids(), episodes=4)
    assert trainer.policy_version == 1


@pytest.mark.parametrize("threaded", [False, True])
def test_replay_of_agents_that_come_late_die_and_stay_away_is_joint(threaded, tmp_path):
    """Every step of an environment is one row of replay, and every action is in it, whoever was there."""
    names, rng = ["a", "b", "c"], np.random.default_rng(0)
    trainer = make_trainer(tmp_path, "masac", SACParams(learning_starts=50, batch_size=8, update_interval=50), threaded)
    for name in names:
        trainer.register_agent(name, "even" if name in "ac" else None)
    num_actions = num_env_steps = 0
    with AgentBuilder().actor_count(0).trainer(trainer).seed(0).build() as agent:
        ids = {(env, name): agent.new_actor(agent_id=name, env_id=env) for env in (uuid4(), uuid4()) for name in names}
        for env in [env for _ in range(15) for env in dict.fromkeys(env for env, _ in ids)]:
            length = int(rng.integers(5, 15))
            stays = {names[0]: range(length)}  # somebody is there from the beginning to the end
            for name in names[1:]:
                first = int(rng.integers(0, 5))
                stays |= {name: range(first, int(rng.integers(first + 1, length + 1)))} if rng.random() < 0.8 else {}
            for t in range(length):
                acting = [name for name in names if t in stays.get(name, ())]
                agent.request_action([ids[env, name] for name in acting], np.full((len(acting), 2), t), step=t)
                ended = [ids[env, name] for name in acting if t == stays[name][-1]]
                if ended:
                    agent.flag_last_action(ended, reward=1.0)
                num_actions += len(acting)
            num_env_steps += length
        assert agent.shutdown().is_clean
    trainer.end_episode()
    trainer.train_model()
    replay = trainer.learner.replay
    arrays = replay.get_state()["arrays"]
    assert len(replay) == trainer.get_step == num_env_steps
    assert sum(int(column.sum()) for name, column in arrays.items() if name.endswith("/valid")) == num_actions


def test_an_agent_that_joins_late_gets_its_policy(tmp_path):
    trainer = team(tmp_path, "ippo", QUICK)
    with AgentBuilder().actor_count(0).trainer(trainer).build() as agent:
        env = uuid4()
        ids = [agent.new_actor(agent_id=name, env_id=env) for name in ("left", "right")]
        for _ in range(4):
            play_in_turn(agent, ids)
        trainer.register_agent("late")
        ids.append(agent.new_actor(agent_id="late", env_id=env))
        for _ in range(4):
            play_in_turn(agent, ids)
        assert trainer.policy_version == 2
        assert set(agent.get_model_version().values()) == {2}


def test_two_agents_feed_one_trainer(tmp_path):
    trainer = make_trainer(tmp_path)
    with AgentBuilder().trainer(trainer).build() as one, AgentBuilder().trainer(trainer).build() as other:
        for _ in range(4):
            play(one, one.get_actor_ids())
            play(other, other.get_actor_ids())
        assert trainer.policy_version == 2
        play(one, one.get_actor_ids())
        play(other, other.get_actor_ids())
        assert set(one.get_model_version().values()) == set(other.get_model_version().values()) == {2}


def pair_trainer(folder: Path, algo: str = "mappo", params: Any = None) -> Any:
    quick = PPOParams(traj_per_epoch=2, train_pi_iters=2, train_vf_iters=2)
    trainer = make_trainer(folder, algo, quick if params is None else params)
    for name in ("left", "right"):
        trainer.register_agent(name)
    return trainer


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("leaves", ["removed", "silent"])
def test_nobody_waits_for_an_agent_that_has_left(leaves, threaded, tmp_path):
    """Of eight episodes of an environment, the second agent plays three: four epochs of two joint trajectories."""
    trainer = pair_trainer(tmp_path)
    trainer.trainer_settings = TrainerSettings(threaded=threaded)
    with AgentBuilder().actor_count(0).trainer(trainer, max_policy_lag=None).seed(0).build() as agent:
        env_id = uuid4()
        ids = [agent.new_actor(agent_id=name, env_id=env_id) for name in trainer.agent_ids]
        play(agent, ids, episodes=3)
        if leaves == "removed":
            agent.remove_actor(ids[1])
        play(agent, ids[:1], episodes=5)
    assert (trainer.num_env_steps + LENGTH * trainer.num_pending, trainer.incomplete) == (8 * LENGTH, [])
    assert trainer.log_epoch()["epoch/num_incomplete"] == 0
    if not threaded:
        assert trainer.policy_version == 4


def test_an_agent_that_plays_in_one_of_two_environments_is_not_waited_for_in_the_other(tmp_path):
    trainer = pair_trainer(tmp_path)
    with AgentBuilder().actor_count(0).trainer(trainer).seed(0).build() as agent:
        both, alone = uuid4(), uuid4()
        ids = [agent.new_actor(agent_id=name, env_id=both) for name in trainer.agent_ids]
        ids.append(agent.new_actor(agent_id="left", env_id=alone))
        play(agent, ids, episodes=2)
        assert (trainer.policy_version, trainer.num_pending, trainer.num_env_steps) == (2, 0, 4 * LENGTH)


@pytest.mark.parametrize(
    ("algo", "params"), [("ippo", None), ("isac", SACParams(learning_starts=20, batch_size=8, update_interval=10))]
)
def test_nobody_is_waited_for_in_an_environment_of_an_actors_own(algo, params, tmp_path):
    trainer = pair_trainer(tmp_path, algo, params)
    with AgentBuilder().actor_count(0).trainer(trainer).seed(0).build() as agent:
        play(agent, [agent.new_actor(agent_id=name) for name in trainer.agent_ids], episodes=3)
        assert (trainer.num_pending, trainer.num_env_steps) == (0, 6 * LENGTH)
        assert trainer.policy_version > 1


@pytest.mark.parametrize("algo", ["ippo", "mappo"])
def test_steps_of_a_game_of_turns_are_counted_once(algo, tmp_path):
    """Blocks of ten steps cut games of five to nine; who waits covers a step on which the other acts, perhaps later."""
    game = "pettingzoo:classic.tictactoe_v3"
    looked_at = make_run_parts(game, algo="ippo", settings={"num_envs": 1})
    ((name, group),) = looked_at.env.groups.items()
    looked_at.close()
    own = {"observation_space": group.observation_space, "action_space": group.action_space, "masks_actions": True}
    quick = PPOParams(traj_per_epoch=1, train_pi_iters=2, train_vf_iters=2)
    trainer = make_trainer(tmp_path, algo, quick, **own)
    for agent_id in group.agent_ids:
        trainer.register_agent(agent_id, name)
    with AgentBuilder().actor_count(0).trainer(trainer, max_policy_lag=None).seed(0).build() as agent:
        actor = agent.new_actor(model=trainer.policies[name], group=name)
        agent.set_env(actor, game, 1, seed=3)
        for block in range(1, 9):
            agent.run_env(actor, 10)
            assert trainer.num_env_steps <= 10 * block
    assert trainer.num_env_steps > 70
