"""Actors with environments of their own."""

import threading

import numpy as np
import pytest
from gymnasium import spaces
from runtime_fakes import ListSink, fixed_policy, obs

from relayrl.errors import ConfigError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from waiting import DEADLINE_S

COUNTING = "relayrl.testing.worlds:CountingWorld"


def counting_policy(version: int = 1):
    return fixed_policy(1, version, space=spaces.Box(0.0, np.inf, (1,), np.float32), action_space=spaces.Discrete(2))


def test_worlds_are_played_and_every_step_is_recorded():
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


def test_worlds_must_fit_the_policy_and_be_there():
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
