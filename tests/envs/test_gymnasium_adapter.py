"""Gymnasium's vector environments kept to the contract, whichever way they begin the next episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from relayrl.envs.contract import StatefulEnvironment, VectorEnvironment, VectorStep, world_seeds
from relayrl.envs.gymnasium_adapter import known_ids, make, own_vector
from relayrl.envs.gymnasium_vector import GymnasiumVector
from relayrl.envs.registry import make_vector
from relayrl.envs.settings import EnvSettings
from relayrl.errors import CheckpointError, ConfigError, EnvError

NUM_ENVS = 3


def cartpole() -> VectorEnvironment:
    env = own_vector("CartPole-v1", NUM_ENVS, {})
    assert env is not None
    env.init_num_envs(NUM_ENVS)
    return env


def synchronous(mode: AutoresetMode) -> VectorEnvironment:
    """Three CartPoles of at most 12 steps behind Gymnasium's own vectoriser."""
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=12)] * NUM_ENVS
    env = GymnasiumVector(SyncVectorEnv(makers, autoreset_mode=mode))
    env.init_num_envs(NUM_ENVS)
    return env


def random_actions(num_steps: int) -> Any:
    return np.random.default_rng(1).integers(0, 2, (num_steps, NUM_ENVS, 1))


def act(env: VectorEnvironment, row: Any) -> VectorStep:
    return env.step({"agent": row})


def test_vectorised_cartpole_plays_the_episodes_of_scalar_cartpoles() -> None:
    vector, scalar = cartpole(), make_vector(make_scalar, EnvSettings(num_envs=NUM_ENVS))
    assert type(vector) is not type(scalar)
    assert (vector.reset(seed=8).groups["agent"].obs == scalar.reset(seed=8).groups["agent"].obs).all()
    num_episodes = 0
    for row in random_actions(3000):
        ours, theirs = act(vector, row), act(scalar, row)
        a, b = ours.groups["agent"], theirs.groups["agent"]
        assert (a.obs == b.obs).all()
        assert (a.terminated == b.terminated).all()
        assert (a.truncated == b.truncated).all()
        assert (a.reward == b.reward).all()
        assert (ours.episode_over == theirs.episode_over).all()
        if a.final is not None and b.final is not None:
            assert (a.final.obs == b.final.obs).all()
        num_episodes += int(ours.episode_over.sum())
    assert num_episodes > 300


def make_scalar() -> Any:
    return make("CartPole-v1")


def test_vectorised_cartpole_is_truncated_at_its_time_limit() -> None:
    env = own_vector("CartPole-v1", 1, {"max_episode_steps": 4})
    assert env is not None
    env.init_num_envs(1)
    env.reset(seed=0)
    ends = [act(env, np.array([[t % 2]])).groups["agent"].truncated.item() for t in range(9)]
    assert ends == [False, False, False, True, False, False, False, True, False]


def test_vectorised_cartpole_resets_the_named_worlds_only() -> None:
    env = cartpole()
    env.reset(seed=8)
    before = act(env, random_actions(1)[0]).groups["agent"].obs.copy()
    after = env.reset(seed=9, env_ids=[env.env_ids[2]]).groups["agent"].obs
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=world_seeds(9, NUM_ENVS)[2])
    assert (after[:2] == before[:2]).all()
    assert (after[2, 0] == expected).all()


def test_vectorised_cartpole_continues_from_a_saved_state() -> None:
    env, other = cartpole(), cartpole()
    assert isinstance(env, StatefulEnvironment)
    assert isinstance(other, StatefulEnvironment)
    env.reset(seed=2)
    actions = random_actions(400)
    for row in actions[:100]:
        act(env, row)
    other.set_state(env.get_state())
    for row in actions[100:]:
        assert (act(env, row).groups["agent"].obs == act(other, row).groups["agent"].obs).all()


def test_the_state_of_another_number_of_worlds_is_refused() -> None:
    env = cartpole()
    assert isinstance(env, StatefulEnvironment)
    env.reset(seed=2)
    state = env.get_state()
    other = make_vector("CartPole-v1", EnvSettings(num_envs=NUM_ENVS + 1))
    assert isinstance(other, StatefulEnvironment)
    with pytest.raises(CheckpointError, match="holds 3 worlds, this environment 4"):
        other.set_state(state)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_same_step_and_disabled_modes_give_the_contracts_episodes(mode: AutoresetMode) -> None:
    options = {"max_episode_steps": 12}
    expected = make_vector("CartPole-v1", EnvSettings(num_envs=NUM_ENVS, options=options))
    env = synchronous(mode)
    assert (env.reset(seed=5).groups["agent"].obs == expected.reset(seed=5).groups["agent"].obs).all()
    for row in random_actions(60):
        ours, theirs = act(env, row), act(expected, row)
        a, b = ours.groups["agent"], theirs.groups["agent"]
        assert (a.obs == b.obs).all()
        assert (ours.episode_over == theirs.episode_over).all()
        assert (a.final is None) == (b.final is None)
        if a.final is not None and b.final is not None:
            assert (a.final.env == b.final.env).all()
            assert (a.final.obs == b.final.obs).all()
    assert env.independent_streams
    env.close()


def test_next_step_mode_spends_an_idle_row_on_the_reset() -> None:
    env = synchronous(AutoresetMode.NEXT_STEP)
    env.reset(seed=5)
    was_over = np.zeros(NUM_ENVS, bool)
    num_idle = 0
    for row in random_actions(60):
        result = act(env, row)
        step = result.groups["agent"]
        assert (step.active[:, 0] == ~result.episode_over).all()
        assert not result.episode_over[was_over].any()
        assert (step.reward[was_over] == 0).all()
        if step.final is not None:
            assert (step.final.obs == step.obs[step.final.env, 0]).all()
        was_over = result.episode_over.copy()
        num_idle += int(was_over.sum())
    assert num_idle > 6
    env.close()


def test_gymnasiums_vectoriser_resets_the_named_worlds_only() -> None:
    env = synchronous(AutoresetMode.SAME_STEP)
    env.reset(seed=5)
    before = act(env, random_actions(1)[0]).groups["agent"].obs.copy()
    after = env.reset(env_ids=[env.env_ids[0]]).groups["agent"].obs
    assert (after[1:] == before[1:]).all()
    assert (after[0] != before[0]).any()
    env.close()


class OneSeed(SyncVectorEnv):
    """Takes one number as its seed, as Gymnasium's base class says."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if isinstance(seed, list):
            raise TypeError("one seed only")
        return super().reset(seed=seed, options=options)


def test_an_environment_that_takes_one_seed_says_that_its_streams_are_not_independent() -> None:
    env = GymnasiumVector(OneSeed([make_scalar] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    env.init_num_envs(2)
    env.reset(seed=1)
    assert not env.independent_streams
    env.close()


class Bare(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment that can only reset as a whole."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as Gymnasium declares it
    num_envs = 2
    single_observation_space = gymnasium.spaces.Discrete(3)
    single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.int64), {}

    def step(self, actions: Any) -> Any:
        return np.ones(2, np.int64), np.ones(2), np.ones(2, bool), np.zeros(2, bool), {}


def test_what_a_vector_environment_cannot_do_is_an_error() -> None:
    env = GymnasiumVector(Bare())
    env.init_num_envs(2)
    env.reset(seed=1)
    with pytest.raises(EnvError, match="can only reset all worlds at once"):
        env.reset(env_ids=[env.env_ids[0]])
    with pytest.raises(EnvError, match="without info"):
        act(env, np.zeros((2, 1), np.int64))
    with pytest.raises(ConfigError, match="built with 2 worlds"):
        GymnasiumVector(Bare()).init_num_envs(4)


def test_an_unsaid_autoreset_mode_is_refused() -> None:
    silent = Bare()
    silent.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        GymnasiumVector(silent)


def test_vector_implementations_that_need_jax_are_left_alone() -> None:
    assert own_vector("phys2d/CartPole-v1", 2, {}) is None


def test_an_option_that_the_vector_implementation_lacks_leads_to_the_scalar_environment() -> None:
    assert own_vector("CartPole-v1", 2, {"render_mode": "rgb_array"}) is None
    env = make_vector("CartPole-v1", EnvSettings(num_envs=2, options={"render_mode": "rgb_array"}))
    assert env.num_envs == 2


def test_only_environments_that_can_be_made_are_listed() -> None:
    ids = known_ids()
    assert "CartPole-v1" in ids
    assert "GymV21Environment-v0" not in ids


def test_a_wrong_option_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1 does not accept the options \{'lenght': 2\}"):
        make_vector("CartPole-v1", EnvSettings(options={"lenght": 2}))
