"""What the skeleton does for every native environment: episodes, auto-reset, seeds, states, refusals."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from native_originals import last_seen, random_actions

from relayrl.envs import native
from relayrl.envs.environment_contract import SINGLE_AGENT, AgentGroup
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.native import BatchedEnvironment
from relayrl.errors import CheckpointError, EnvError, EnvironmentFailedError
from relayrl.extend import Blueprint, Worlds, namespace_of


def started(name: str, num_envs: int, seed: int = 3, **options: Any) -> BatchedEnvironment:
    env = native.make(name, **options)
    env.init_num_envs(num_envs)
    env.reset(seed=seed)
    return env


def set_motion(env: BatchedEnvironment, motion: list[list[float]]) -> None:
    env.set_state({**env.get_state(), "motion": np.array(motion)})


def test_auto_reset_begins_the_episode_that_reset_would_begin() -> None:
    ended = started("Pendulum", 3, max_episode_steps=4)
    for _ in range(4):
        step = ended.step({SINGLE_AGENT: np.zeros((3, 1, 1), np.float32)})
    again = started("Pendulum", 3)
    np.testing.assert_array_equal(step.groups[SINGLE_AGENT].obs, again.reset().groups[SINGLE_AGENT].obs)


def test_beginnings_are_the_same_however_many_worlds_end_at_once() -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(300, 5, 1))
    many = started("CartPole", 5)
    alone = started("CartPole", 1)
    for action in actions:
        one = alone.step({SINGLE_AGENT: action[:1]}).groups[SINGLE_AGENT]
        all_five = many.step({SINGLE_AGENT: action}).groups[SINGLE_AGENT]
        np.testing.assert_array_equal(one.obs[0], all_five.obs[0])
    assert alone.get_state()["episode"][0] > 5


def test_final_observations_are_what_was_seen_last() -> None:
    env = started("CartPole", 2)
    # world 0 is about to pass x = 2.4 at 5 m/s, world 1 is not
    set_motion(env, [[2.39, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    step = env.step({SINGLE_AGENT: np.ones((2, 1), int)})
    group = step.groups[SINGLE_AGENT]
    assert step.episode_over.tolist() == [True, False]
    assert group.terminated.tolist() == [[True], [False]]
    assert group.final is not None
    assert (group.final.env.tolist(), group.final.agent.tolist()) == ([0], [0])
    assert last_seen(step, SINGLE_AGENT, 0, 0)[0] == pytest.approx(2.39 + 0.02 * 5.0)
    assert np.abs(group.obs[0]).max() <= 0.05
    assert group.reward.tolist() == [[1.0], [1.0]]


def test_finals_of_several_agents_are_sorted_by_world_and_agent() -> None:
    env = started("simple_spread", 2, max_cycles=1)
    final = env.step({"agent": np.zeros((2, 3), int)}).groups["agent"].final
    assert final is not None
    assert final.env.tolist() == [0, 0, 0, 1, 1, 1]
    assert final.agent.tolist() == [0, 1, 2, 0, 1, 2]


def test_an_episode_may_end_and_reach_its_limit_in_the_same_step() -> None:
    env = started("CartPole", 1, max_episode_steps=1)
    set_motion(env, [[2.39, 5.0, 0.0, 0.0]])
    group = env.step({SINGLE_AGENT: np.ones((1, 1), int)}).groups[SINGLE_AGENT]
    assert (group.terminated.item(), group.truncated.item()) == (True, True)


def test_in_particle_worlds_the_limit_comes_before_success() -> None:
    env = started("simple_spread", 1, N=1, terminate_on_success=True, max_cycles=1)
    state = env.get_state()
    state["position"][:] = 0.25
    env.set_state(state)
    group = env.step({"agent_0": np.zeros((1, 1), int)}).groups["agent_0"]
    assert (group.terminated.item(), group.truncated.item()) == (False, True)


def test_reset_of_one_world_leaves_the_counters_of_the_others() -> None:
    env = started("Pendulum", 3)
    for _ in range(5):
        env.step({SINGLE_AGENT: np.zeros((3, 1, 1), np.float32)})
    env.reset(env_ids=[env.env_ids[1]])
    state = env.get_state()
    assert state["elapsed_steps"].tolist() == [5, 0, 5]
    assert state["episode"].tolist() == [0, 1, 0]


def test_without_a_seed_every_environment_begins_elsewhere() -> None:
    envs = [native.make("Pendulum") for _ in range(2)]
    for env in envs:
        env.init_num_envs(1)
    first, second = (env.reset().groups[SINGLE_AGENT].obs.copy() for env in envs)
    assert not np.array_equal(first, second)


def test_a_state_of_one_dtype_or_device_continues_in_another() -> None:
    source, target = (
        started("simple_tag", 3, dtype="float64"),
        native.make("simple_tag", dtype="float64", device="cpu:0"),
    )
    target.init_num_envs(3)
    target.set_state(source.get_state())
    rng = np.random.default_rng(1)
    for _ in range(30):
        actions = random_actions(source, rng)
        ours, theirs = source.step(actions), target.step(actions)
    for name in source.groups:
        np.testing.assert_allclose(theirs.groups[name].obs.numpy(), ours.groups[name].obs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", native.names())
def test_torch_gives_what_numpy_gives(name: str) -> None:
    rng = np.random.default_rng(2)
    envs = [started(name, 4, dtype="float64", device=device) for device in ("cpu", "cpu:0")]
    for _ in range(60):
        actions = random_actions(envs[0], rng)
        ours, theirs = (env.step(actions) for env in envs)
        for group in ours.groups:
            np.testing.assert_allclose(theirs.groups[group].obs.numpy(), ours.groups[group].obs, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(
                theirs.groups[group].reward.numpy(), ours.groups[group].reward, rtol=1e-6, atol=1e-7
            )
        assert theirs.episode_over.tolist() == ours.episode_over.tolist()


def test_an_action_that_does_not_exist_names_its_world_and_agent() -> None:
    env = started("simple_spread", 2)
    actions = np.zeros((2, 3), int)
    actions[1, 2] = 5
    with pytest.raises(EnvironmentFailedError, match=r"action 5 of 'agent_2' is outside Discrete\(5\)") as caught:
        env.step({"agent": actions})
    assert caught.value.env_id == env.env_ids[1]
    assert caught.value.seed == 3
    with pytest.raises(EnvironmentFailedError, match="action -1 of 'agent_0'"):
        env.step({"agent": np.full((2, 3), -1)})


@pytest.mark.parametrize(
    "actions",
    [{}, {"agent": np.zeros((3, 3), int)}, {"agent": np.zeros((2, 3))}, {"agent": np.zeros((2, 3, 1), int)}],
)
def test_malformed_actions_are_refused(actions: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match="group 'agent'"):
        started("simple_spread", 2).step(actions)


def idle(space: Any, device: str) -> BatchedEnvironment:
    """One environment of two agents that keeps the actions it was given."""
    xp = namespace_of(device)
    group = AgentGroup("agent", ("a", "b"), spaces.Box(-1.0, 1.0, (1,)), space)

    class Idle(Worlds):
        def __init__(self, num_envs: int) -> None:
            self.state = {}
            self.observations = {"agent": xp.zeros((num_envs, 2, 1), "float32")}
            self.rewards = {"agent": xp.zeros((num_envs, 2), "float32")}
            self.terminated = xp.zeros((num_envs,), "bool")
            self.taken: Any = None

        def begin(self, draws: Any) -> None:
            pass

        def advance(self, actions: Any) -> None:
            self.taken = actions["agent"]

        def observe(self) -> None:
            pass

    env = BatchedEnvironment(Blueprint("idle", {"agent": group}, 10, 1, Idle, xp))
    env.init_num_envs(1)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(3, start=5), [5, 7], [4, 8, 0]),
        (spaces.MultiDiscrete([2, 3]), [[0, 0], [1, 2]], [[2, 0], [0, 3], [-1, 0]]),
        (spaces.MultiDiscrete([2, 3], start=[1, 4]), [[1, 4], [2, 6]], [[0, 4], [1, 7]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[2, 0], [0, -1], [256, 0]]),
    ],
)
def test_choices_of_every_kind_are_checked(space, good: list[Any], bad: list[Any], device: str) -> None:
    env = idle(space, device)
    env.step({"agent": np.array([good])})
    assert np.asarray(env.worlds.taken).tolist() == [good]
    assert str(env.worlds.taken.dtype).removeprefix("torch.") == str(space.dtype)
    for wrong in bad:
        with pytest.raises(EnvironmentFailedError, match=r"of 'b' is outside (Multi)?(Discrete|Binary)"):
            env.step({"agent": np.array([[good[0], wrong]])})
    with pytest.raises(EnvError, match="takes integers"):
        env.step({"agent": np.array([good]) + 0.5})


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_numbers_are_given_in_the_dtype_of_their_space(device: str) -> None:
    env = idle(spaces.Box(-3, 3, (1,), np.int64), device)
    env.step({"agent": np.array([[[1.0], [-2.0]]])})
    assert str(env.worlds.taken.dtype).removeprefix("torch.") == "int64"
    assert np.asarray(env.worlds.taken).tolist() == [[[1], [-2]]]


def test_small_integers_and_lists_are_actions_too() -> None:
    by_list, by_int8 = started("CartPole", 2), started("CartPole", 2)
    one = by_list.step({SINGLE_AGENT: [[1], [0]]}).groups[SINGLE_AGENT]
    other = by_int8.step({SINGLE_AGENT: np.array([[1], [0]], np.int8)}).groups[SINGLE_AGENT]
    np.testing.assert_array_equal(one.obs, other.obs)


def test_continuous_actions_are_clipped_to_their_space() -> None:
    wild, tame = (started("simple_spread", 2, continuous_actions=True) for _ in range(2))
    action = np.random.default_rng(0).normal(0.5, 2.0, (2, 3, 5)).astype(np.float32)
    ours = wild.step({"agent": action}).groups["agent"]
    clipped = tame.step({"agent": action.clip(0, 1)}).groups["agent"]
    np.testing.assert_array_equal(ours.obs, clipped.obs)


def test_calls_in_the_wrong_order_are_refused() -> None:
    env = native.make("CartPole")
    with pytest.raises(EnvError, match=r"reset\(\) before init_num_envs"):
        env.reset()
    with pytest.raises(EnvError, match="at least 1"):
        env.init_num_envs(0)
    env.init_num_envs(2)
    with pytest.raises(EnvError, match="was called before"):
        env.init_num_envs(3)
    for call in (lambda: env.step({}), env.get_state, lambda: env.render(0), lambda: env.reset(env_ids=env.env_ids)):
        with pytest.raises(EnvError, match=r"reset\(\)"):
            call()
    env.reset()
    with pytest.raises(EnvError, match="no world has the id"):
        env.reset(env_ids=[uuid.uuid4()])
    with pytest.raises(EnvError, match="no running world 2"):
        env.render(2)


def test_states_of_other_environments_are_refused() -> None:
    env = started("CartPole", 2)
    state = env.get_state()
    with pytest.raises(CheckpointError, match="'motion'"):
        env.set_state({name: array for name, array in state.items() if name != "motion"})
    with pytest.raises(CheckpointError, match=r"shape \(2, 2\), this environment has \(2, 4\)"):
        env.set_state({**state, "motion": state["motion"][:, :2]})


def test_the_flag_ends_mountain_car_with_100() -> None:
    env = started("MountainCarContinuous", 3)
    set_motion(env, [[0.44, 0.05], [0.44, -0.01], [-1.19, -0.05]])
    step = env.step({SINGLE_AGENT: np.array([[[1.0]], [[0.5]], [[2.0]]], np.float32)})
    group = step.groups[SINGLE_AGENT]
    assert group.terminated[:, 0].tolist() == [True, False, False]
    # 100 at the flag, and −0.1 a² of the action as given, not as clipped
    np.testing.assert_allclose(group.reward[:, 0], [100 - 0.1, -0.025, -0.4], rtol=1e-6)
    np.testing.assert_allclose(group.obs[2, 0], [-1.2, 0.0], atol=1e-7)


def test_acrobot_ends_when_its_tip_is_above_the_line() -> None:
    env = started("Acrobot", 2)
    set_motion(env, [[np.pi - 0.3, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    group = env.step({SINGLE_AGENT: np.ones((2, 1), int)}).groups[SINGLE_AGENT]
    assert group.terminated[:, 0].tolist() == [True, False]
    assert group.reward[:, 0].tolist() == [0.0, -1.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_agents_in_the_same_place_do_not_break_the_world(dtype: str) -> None:
    env = started("simple_spread", 1, dtype=dtype)
    state = env.get_state()
    state["position"][:] = 0.25
    env.set_state(state)
    step = env.step({"agent": np.array([[0, 1, 2]])})
    assert np.isfinite(step.groups["agent"].obs).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_names_its_environment_and_agent(value: float) -> None:
    env = make_vector(lambda: native.make("simple_spread"), EnvSettings(num_envs=2))
    env.reset(seed=3)
    inner: Any = env
    while not isinstance(inner, BatchedEnvironment):
        inner = inner._env
    advance = inner.worlds.advance

    def broken(actions: Any) -> None:
        advance(actions)
        inner.worlds.rewards["agent"][1, 2] = value

    inner.worlds.advance = broken
    with pytest.raises(EnvironmentFailedError, match=f"agent 'agent_2': the reward is {value}") as caught:
        env.step({"agent": np.zeros((2, 3), int)})
    assert caught.value.env_id == env.env_ids[1]
