"""Gymnasium's vector environments kept to the contract, whichever way they begin the next episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from worker_environments import Masked

from relayrl.envs.adapters.gymnasium_adapter import EQUAL_VECTORS, equal_vector, known_ids, make, own_vector
from relayrl.envs.adapters.gymnasium_vector import GymnasiumVector
from relayrl.envs.environment_contract import (
    SINGLE_AGENT,
    StatefulEnvironment,
    VectorEnvironment,
    VectorStep,
    env_seeds,
)
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy, VectorChoice
from relayrl.errors import CheckpointError, ConfigError, EnvError, EnvironmentFailedError

NUM_ENVS = 3


def cartpole() -> VectorEnvironment:
    env = own_vector("CartPole-v1", NUM_ENVS, {})
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


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # Gymnasium of CartPole-v0
@pytest.mark.parametrize("options", [{}, {"max_episode_steps": 9}, {"sutton_barto_reward": True}], ids=str)
@pytest.mark.parametrize("env_id", EQUAL_VECTORS)
def test_every_vector_implementation_that_is_used_unasked_is_the_scalar_environment(
    env_id: str, options: dict[str, Any]
) -> None:
    vector = equal_vector(env_id, NUM_ENVS, options)
    assert vector is not None
    vector.init_num_envs(NUM_ENVS)
    scalar = make_vector(make_id, EnvSettings(num_envs=NUM_ENVS, options={"env_id": env_id, **options}))
    assert type(vector) is not type(scalar)
    assert vector.groups == scalar.groups
    assert (vector.reset(seed=8).groups["agent"].obs == scalar.reset(seed=8).groups["agent"].obs).all()
    num_episodes = 0
    for row in random_actions(1000):
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
    assert num_episodes > 100


def make_id(env_id: str, **options: Any) -> Any:
    return make(env_id, **options)


class Loud(gymnasium.Env[Any, Any]):
    """Rewards 10 a step and shows two numbers."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(2, np.float32), 10.0, True, False, {}


class Quiet(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The vector implementation that `Loud` is registered with: rewards 1 a step and shows one number."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        ends = np.zeros(self.num_envs, bool)
        return np.ones((self.num_envs, 1), np.float32), np.ones(self.num_envs), ends, ends, {}


@pytest.fixture
def loud() -> Iterator[str]:
    """The id of an environment whose vector implementation is another environment."""
    gymnasium.register("Loud-v0", entry_point=Loud, vector_entry_point=Quiet)
    yield "Loud-v0"
    del gymnasium.registry["Loud-v0"]


def test_a_vector_implementation_that_may_differ_is_used_on_request_only(loud: str) -> None:
    rewards, shapes = [], []
    for vector in VectorChoice:
        env = make_vector(loud, EnvSettings(num_envs=2, vector=vector))
        shapes.append(env.groups["agent"].observation_space.shape)
        env.reset(seed=0)
        rewards.append(act(env, np.zeros((2, 1), np.int64)).groups["agent"].reward[:, 0].tolist())
        env.close()
    assert rewards == [[10.0, 10.0], [1.0, 1.0]]
    assert shapes == [(2,), (1,)]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Acrobot-v1", {}, "Acrobot-v1 has no vector implementation of its own; set environment.vector to 'auto'"),
        ("test_gymnasium_adapter:make_scalar", {}, "has no vector implementation of its own"),
        ("phys2d/CartPole-v1", {}, "needs jax; set environment.vector to 'auto'"),
        ("CartPole-v1", {"workers": 1}, "steps all environments in one call; set workers to 0"),
        ("CartPole-v1", {"on_failure": FailurePolicy.RESTART}, "set on_failure to 'raise'"),
        ("CartPole-v1", {"options": {"lenght": 2}}, "does not accept the options {'lenght': 2}"),
    ],
)
def test_an_own_vector_that_cannot_be_had_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vector(name, EnvSettings(num_envs=2, vector=VectorChoice.OWN, **settings))


def make_scalar() -> Any:
    return make("CartPole-v1")


def test_vectorised_cartpole_is_truncated_at_its_time_limit() -> None:
    env = own_vector("CartPole-v1", 1, {"max_episode_steps": 4})
    env.init_num_envs(1)
    env.reset(seed=0)
    ends = [act(env, np.array([[t % 2]])).groups["agent"].truncated.item() for t in range(9)]
    assert ends == [False, False, False, True, False, False, False, True, False]


def test_vectorised_cartpole_resets_the_named_envs_only() -> None:
    env = cartpole()
    env.reset(seed=8)
    before = act(env, random_actions(1)[0]).groups["agent"].obs.copy()
    after = env.reset(seed=9, env_ids=[env.env_ids[2]]).groups["agent"].obs
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=env_seeds(9, NUM_ENVS)[2])
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


def test_the_state_of_another_number_of_envs_is_refused() -> None:
    env = cartpole()
    assert isinstance(env, StatefulEnvironment)
    env.reset(seed=2)
    state = env.get_state()
    other = make_vector("CartPole-v1", EnvSettings(num_envs=NUM_ENVS + 1))
    assert isinstance(other, StatefulEnvironment)
    with pytest.raises(CheckpointError, match="holds 3 environments, this environment 4"):
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


def test_gymnasiums_vectoriser_resets_the_named_envs_only() -> None:
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
    with pytest.raises(EnvError, match="can only reset all environments at once"):
        env.reset(env_ids=[env.env_ids[0]])
    with pytest.raises(EnvError, match="without info"):
        act(env, np.zeros((2, 1), np.int64))
    with pytest.raises(ConfigError, match="built with 2 environments"):
        GymnasiumVector(Bare()).init_num_envs(4)


def test_an_unsaid_autoreset_mode_is_refused() -> None:
    silent = Bare()
    silent.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        GymnasiumVector(silent)


def test_vector_implementations_that_need_jax_are_left_alone() -> None:
    assert equal_vector("phys2d/CartPole-v1", 2, {}) is None


def test_an_option_that_the_vector_implementation_lacks_leads_to_the_scalar_environment() -> None:
    assert equal_vector("CartPole-v1", 2, {"render_mode": "rgb_array"}) is None
    assert equal_vector("CartPole-v1", 2, {"max_episode_steps": -1}) is None
    env = make_vector("CartPole-v1", EnvSettings(num_envs=2, options={"render_mode": "rgb_array"}))
    assert env.num_envs == 2


def test_only_environments_that_can_be_made_are_listed() -> None:
    ids = known_ids()
    assert "CartPole-v1" in ids
    assert "GymV21Environment-v0" not in ids


def test_a_wrong_option_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1 does not accept the options \{'lenght': 2\}"):
        make_vector("CartPole-v1", EnvSettings(options={"lenght": 2}))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_action_masks_of_a_vector_environment_are_those_of_its_environments(mode: AutoresetMode) -> None:
    env = GymnasiumVector(SyncVectorEnv([Masked] * 2, autoreset_mode=mode))
    env.init_num_envs(2)
    assert env.groups["agent"].masks_actions
    seen = env.reset(seed=1).groups["agent"]
    masks = []
    for _ in range(12):
        assert seen.action_mask is not None
        masks += [np.flatnonzero(seen.action_mask[1, 0]).tolist()] if seen.active[1, 0] else []
        seen = act(env, np.zeros((2, 1), np.int64)).groups["agent"]
    assert masks == ([[0], [1], [2], [0]] * 3)[: len(masks)]
    assert len(masks) == (10 if mode is AutoresetMode.NEXT_STEP else 12)
    env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_mask_of_a_final_observation_is_the_environments(mode: AutoresetMode) -> None:
    env = GymnasiumVector(SyncVectorEnv([Masked] * 2, autoreset_mode=mode))
    env.init_num_envs(2)
    env.reset(seed=1)
    finals = [act(env, np.zeros((2, 1), np.int64)).groups["agent"].final for _ in range(12)]
    masks = [np.flatnonzero(final.action_mask[1]).tolist() for final in finals if final is not None]
    assert masks
    assert masks == [[1]] * len(masks)
    env.close()


@pytest.mark.parametrize(("actions", "env"), [([[0], [0], [2]], 2), ([[1], [-1], [5]], 1)])
def test_vectorised_cartpole_names_the_environment_whose_action_does_not_exist(actions, env) -> None:
    envs = make_vector("CartPole-v1", EnvSettings(num_envs=3))
    envs.reset(seed=1)
    with pytest.raises(EnvironmentFailedError, match=rf"action {actions[env][0]} is outside Discrete\(2\)") as info:
        envs.step({SINGLE_AGENT: np.array(actions)})
    assert info.value.env_id == envs.env_ids[env]
    with pytest.raises(EnvError, match=r"shape \(3,\), the environment takes \(3, 1\)"):
        envs.step({SINGLE_AGENT: np.zeros(3, int)})
