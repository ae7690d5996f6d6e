"""Actors with environments of their own."""

import threading

import numpy as np
import pytest
from gymnasium import spaces
from runtime_fakes import FixedActor, ListSink, fixed_policy, obs

from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError, EnvironmentFailedError, InferenceError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.requests.policy_model import CustomPolicy
from relayrl.testing.multi_agent_environments import DyingAgents
from waiting import DEADLINE_S

COUNTING = "relayrl.testing.toy_environments:CountingEnv"


def counting_policy(version: int = 1):
    return fixed_policy(1, version, space=spaces.Box(0.0, np.inf, (1,), np.float32), action_space=spaces.Discrete(2))


def test_environments_are_played_and_every_step_is_recorded():
    sink = ListSink()
    with AgentBuilder().default_model(counting_policy()).sink(sink).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, COUNTING, 3)
        summary = agent.run_env(actor_id, 12)
        assert summary.num_env_steps == 36
        assert summary.lengths == (5,) * 6
        assert summary.returns == (15.0,) * 6
        agent.update_model(counting_policy(2))
        agent.run_env(actor_id, 12)
    assert sink.num_steps == 72
    assert len({each.env_id for each in sink.trajectories}) == 3
    versions = np.concatenate([each.policy_version for each in sink.trajectories])
    assert sorted(np.unique(versions, return_counts=True)[1].tolist()) == [36, 36]


@pytest.mark.parametrize("asked", [(300, 1, 127), (5, 200), (128, 129)])
def test_as_many_steps_are_played_as_were_asked_for(asked):
    sink = ListSink()
    with AgentBuilder().default_model(counting_policy()).sink(sink).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, COUNTING, 2)
        assert [agent.run_env(actor_id, each).num_env_steps for each in asked] == [2 * each for each in asked]
    assert sink.num_steps == 2 * sum(asked)
    for env in {each.env_id for each in sink.trajectories}:
        parts = sorted((t.episode, t.first_step, len(t)) for t in sink.trajectories if t.env_id == env)
        steps = [(episode, first + i) for episode, first, length in parts for i in range(length)]
        assert steps == [divmod(i, 5) for i in range(sum(asked))]


def test_environments_must_fit_the_policy_and_be_there():
    with AgentBuilder().default_model(counting_policy()).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        with pytest.raises(ConfigError, match="set_env"):
            agent.run_env(actor_id, 1)
        with pytest.raises(ConfigError, match="the environment"):
            agent.set_env(actor_id, "CartPole-v1")
        agent.set_env(actor_id, COUNTING)
        with pytest.raises(ConfigError, match="at least one"):
            agent.run_env(actor_id, 0)


def test_an_actor_may_play_and_be_asked():
    sink = ListSink()
    with AgentBuilder().default_model(counting_policy()).sink(sink).build() as agent:
        ids = agent.get_actor_ids()
        agent.set_env(ids[0], COUNTING)
        agent.request_action(ids, obs(3)[:, :1])
        agent.run_env(ids[0], 5)
        agent.flag_last_action(ids)
    assert sorted(len(each) for each in sink.trajectories) == [1, 5]


def test_an_actor_may_be_removed_while_it_plays():
    sink, outcomes = ListSink(), []
    with AgentBuilder().default_model(counting_policy()).sink(sink).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, COUNTING, 2)

        def play() -> None:
            try:
                agent.run_env(actor_id, 10**9)
            except ConfigError as error:
                outcomes.append(str(error))

        thread = threading.Thread(target=play)
        thread.start()
        while not sink.num_steps:
            agent.flush()
        assert agent.remove_actor(actor_id)
        thread.join(DEADLINE_S)
    assert len(outcomes) == 1
    assert "was removed" in outcomes[0]


def outline(trajectories) -> list[tuple[object, ...]]:
    return sorted(
        (t.agent_id, t.episode, t.first_step, t.steps.tolist(), t.end_step, t.truncated, t.failed) for t in trajectories
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_steps_before_an_environment_raises_are_kept_and_set_env_goes_on(num_workers):
    sink = ListSink()
    settings = EnvSettings(options={"at_step": 13}, workers=num_workers)
    with AgentBuilder().default_model(counting_policy()).sink(sink).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, "relayrl.testing.toy_environments:Crashing", 2, settings=settings)
        assert agent.run_env(actor_id, 4).num_env_steps == 8
        with pytest.raises(EnvironmentFailedError, match="as asked"):
            agent.run_env(actor_id, 100)
        for _ in range(2):
            with pytest.raises(ConfigError, match="set_env"):
                agent.run_env(actor_id, 3)
        agent.flush()
        assert sink.num_steps == 24
        ends = sorted(
            (t.episode, t.end_step, t.terminated, t.truncated, t.failed) for t in sink.trajectories if t.episode
        )
        # The failed step is void, and covered.
        assert ends == [(1, 5, True, False, False)] * 2 + [(2, 3, False, True, True)] * 2
        for t in sink.trajectories:
            assert t.obs[:, 0].tolist() == t.steps.tolist()
        agent.set_env(actor_id, COUNTING, 2)
        assert agent.run_env(actor_id, 5).lengths == (5, 5)
    assert sink.num_steps == 34


class Failing(FixedActor):
    """Raises in its `at`th pass."""

    at = -1

    def distribution(self, obs, mask=None):
        self.at -= 1
        if self.at == 0:
            raise RuntimeError("no pass")
        return super().distribution(obs, mask)


@pytest.mark.parametrize("at", [3, 4])
def test_all_groups_keep_their_steps_when_one_fails_and_new_episodes_begin(at):
    sink, game = ListSink(), DyingAgents()
    actors = {name: Failing(1, action_space=game.action_spaces[name]) for name in ("sheep_0", "wolf_0")}
    with AgentBuilder().actor_count(0).sink(sink).build() as agent:
        ids = {}
        for name, group in (("sheep_0", "sheep"), ("wolf_0", "wolf_0")):
            policy = CustomPolicy(actors[name], game.observation_spaces[name], group=group, policy_version=1)
            ids[group] = agent.new_actor(model=policy)
        agent.set_env(ids, "relayrl.testing.multi_agent_environments:DyingAgents")
        actors["wolf_0"].at = at + 2  # in the middle of a row: the sheep have acted on it
        with pytest.raises(InferenceError, match="no pass"):
            agent.run_env(ids["sheep"], 100)
        assert agent.run_env(ids["sheep"], 6).lengths == (6,)
    for t in sink.trajectories:  # the state is the number of steps; that of a void step is where the episode ended
        assert t.state[:, 0].tolist() == t.steps.tolist()
        assert t.final_state.tolist() == [t.end_step - t.failed]
    first = [each for each in outline(sink.trajectories) if each[1] == 0]
    assert first == [
        ("sheep_0", 0, 0, [0, 1], 2, False, False),
        ("sheep_1", 0, 0, list(range(min(at + 1, 5))), at + 2 if at < 4 else 5, True, at < 4),
        ("wolf_0", 0, 0, list(range(3, at + 1)), at + 2, True, True),
    ]
    assert [each for each in outline(sink.trajectories) if each[1] == 1] == [
        ("sheep_0", 1, 0, [0, 1], 2, False, False),
        ("sheep_1", 1, 0, [0, 1, 2, 3, 4], 5, True, False),
        ("wolf_0", 1, 0, [3, 4, 5], 6, False, False),
    ]


def test_blocks_are_as_long_as_each_run_asks_for():
    sink = ListSink()
    with AgentBuilder().default_model(counting_policy()).sink(sink).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(
            actor_id,
            "relayrl.testing.toy_environments:CountingEnv",
            settings=EnvSettings(options={"terminate_at": None}),
        )
        for num_steps in (10, 100, 130):
            agent.run_env(actor_id, num_steps)
    assert sorted(len(t) for t in sink.trajectories) == [2, 10, 100, 128]
