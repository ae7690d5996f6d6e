"""What a collector carries from session to session, and what it records."""

import numpy as np
import pytest

from relayrl.accelerator.live_actor import live_actor
from relayrl.engines.local.run_parts import build_parts
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.models.heads.box_heads import BoxHead

FLAGS = {"environment.num_envs": 2, "trainer.time_horizon": 7, "network.hidden_sizes": (8,)}


def parts_for(env: str, **flags):
    return build_parts(build_run_settings(env, None, FLAGS | {k.replace("__", "."): v for k, v in flags.items()}, []))


@pytest.mark.parametrize(
    "env",
    [
        "native:CartPole",
        "CartPole-v1",
        "Pendulum-v1",
        "mpe2:simple_spread_v3",
        "relayrl.testing.toy_environments:RandomWalk",
    ],
)
def test_blocks_after_a_saved_state_are_those_that_would_have_followed(env):
    first, second = parts_for(env), parts_for(env)
    for version in range(3):
        first.collector.collect(version)
    first.collector.take_ended()
    assert second.collector.load_state_dict(first.collector.state_dict(), seed=99)
    for version in range(3, 6):
        for one, other in zip(
            first.collector.collect(version).values(), second.collector.collect(version).values(), strict=True
        ):
            for column in ("obs", "action", "reward", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
            np.testing.assert_array_equal(one.episode(), other.episode())
            np.testing.assert_array_equal(one.step(), other.step())
        assert first.collector.take_ended() == second.collector.take_ended()
    first.env.close()
    second.env.close()


def test_without_a_saved_environment_new_episodes_begin_and_get_new_numbers():
    first, second = parts_for("CartPole-v1"), parts_for("CartPole-v1")
    last = first.collector.collect(0)["agent"].episode()[-1]
    state = first.collector.state_dict() | {"environment": None}
    assert not second.collector.load_state_dict(state, seed=99)
    following = second.collector.collect(1)["agent"]
    assert following.episode()[0].tolist() == (last + 1).tolist()
    assert following.step()[0].tolist() == [0, 0]
    first.env.close()
    second.env.close()


def test_log_probabilities_are_recorded_where_a_newer_policy_learns():
    parts = parts_for("native:CartPole", trainer__threaded=True)
    rollout = parts.collector.collect(0)["agent"]
    policy = parts.policies["agent"]
    assert rollout.logp is not None
    assert np.all(rollout.logp < 0)
    assert not isinstance(policy.head, BoxHead)
    parts.env.close()


def test_log_probabilities_are_recorded_where_they_are_free(monkeypatch):
    compiled = parts_for("native:CartPole")
    rollout = compiled.collector.collect(0)["agent"]
    assert rollout.logp is not None
    distribution = live_actor(compiled.policies["agent"]).distribution(rollout.obs.reshape(-1, 4), None)
    expected = compiled.policies["agent"].head.log_prob_numpy(distribution, rollout.action.reshape(-1))
    np.testing.assert_allclose(rollout.logp.reshape(-1), expected, rtol=1e-5, atol=1e-6)
    compiled.env.close()
    monkeypatch.setenv("RELAYRL_COMPILED", "off")
    plain = parts_for("native:CartPole")
    assert plain.collector.collect(0)["agent"].logp is None
    plain.env.close()


def test_replay_needs_none_and_still_begins_with_random_actions():
    flags = {"algo": "sac", "trainer__threaded": True, "params__learning_starts": 1000}
    parts = parts_for("native:CartPole", **flags)
    assert parts.collector.collect(0)["agent"].logp is None
    parts.env.close()
