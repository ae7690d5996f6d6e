"""What an agent promises, in every mode: with a file's policy and a sink, and with a training server."""

import numpy as np
import pytest
from agent_modes import MODES

from relayrl.errors import AgentStateError, ConfigError
from waiting import wait_until


@pytest.fixture(params=MODES)
def mode(request, tmp_path):
    with MODES[request.param](tmp_path) as made:
        yield made


def play(agent, ids, num_steps, seed=0):
    """Request actions for numbered observations; rewards are the number of the step that they belong to."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(num_steps, len(ids), 4)).astype(np.float32)
    actions = []
    for step, obs in enumerate(seen):
        record = agent.request_action(ids, obs, reward=None if step == 0 else float(step - 1))
        actions.append(np.array(record.action))
    agent.flag_last_action(ids, reward=float(num_steps - 1))
    return seen, np.stack(actions)


def test_every_step_is_stored_once_with_its_own_reward(mode):
    with mode.builder.actor_count(2).build() as agent:
        ids = agent.get_actor_ids()
        seen, actions = play(agent, ids, 7)
        assert agent.flush()
    stored = sorted(mode.stored(), key=lambda t: float(t.obs[0, 0] != seen[0, 0, 0]))
    assert len(stored) == 2
    for lane, trajectory in enumerate(stored):
        np.testing.assert_array_equal(trajectory.obs, seen[:, lane])
        np.testing.assert_array_equal(trajectory.action, actions[:, lane])
        np.testing.assert_array_equal(trajectory.reward, np.arange(7))
        assert (trajectory.terminated, trajectory.truncated, trajectory.failed) == (True, False, False)


def test_actions_are_of_the_space_and_of_the_version_that_is_named(mode):
    with mode.builder.actor_count(3).build() as agent:
        ids = agent.get_actor_ids()
        record = agent.request_action(ids, np.zeros((3, 4), np.float32))
        assert set(np.unique(record.action)) <= {0, 1}
        assert set(record.policy_version.tolist()) == set(agent.get_model_version().values())


def test_a_newer_policy_is_acted_with_and_recorded(mode):
    with mode.builder.actor_count(1).build() as agent:
        ids = agent.get_actor_ids()
        before = agent.get_model_version()[ids[0]]
        mode.publish(agent)
        wait_until(lambda: agent.get_model_version()[ids[0]] > before)
        play(agent, ids, 3)
        assert agent.flush()
    assert max(int(t.policy_version.max()) for t in mode.stored()) > before


def test_a_shutdown_stores_open_episodes_as_cut(mode):
    agent = mode.builder.actor_count(1).build()
    agent.start()
    agent.request_action(agent.get_actor_ids(), np.zeros((1, 4), np.float32))
    report = agent.shutdown()
    assert report.is_clean
    (trajectory,) = mode.stored()
    assert (len(trajectory), trajectory.truncated, trajectory.failed) == (1, True, True)


def test_an_agent_can_be_restarted_and_nothing_is_stored_twice(mode):
    with mode.builder.actor_count(1).build() as agent:
        play(agent, agent.get_actor_ids(), 4)
        assert agent.restart().is_clean
        play(agent, agent.get_actor_ids(), 5, seed=1)
    assert sorted(len(t) for t in mode.stored()) == [4, 5]


def test_actors_may_come_and_go(mode):
    with mode.builder.actor_count(1).build() as agent:
        new = agent.new_actor()
        play(agent, [new], 3)
        assert agent.remove_actor(new)
        with pytest.raises(ConfigError):
            agent.request_action([new], np.zeros((1, 4), np.float32))


def test_nothing_is_answered_after_the_shutdown(mode):
    agent = mode.builder.actor_count(1).build()
    agent.start()
    ids = agent.get_actor_ids()
    agent.shutdown()
    with pytest.raises(AgentStateError):
        agent.request_action(ids, np.zeros((1, 4), np.float32))
