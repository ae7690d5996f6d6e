"""VMAS scenarios as a vector environment: what the contract suite cannot know."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import vmas
from gymnasium import spaces

from relayrl.envs.adapters import vmas_adapter
from relayrl.envs.environment_contract import VectorEnvironment, VectorStep
from relayrl.errors import ConfigError, EnvError, EnvironmentFailedError, UnknownNameError


def started(name: str = "simple_spread", num_envs: int = 3, seed: int = 0, **options: Any) -> VectorEnvironment:
    env = vmas_adapter.make(name, **options)
    env.init_num_envs(num_envs)
    env.reset(seed=seed)
    return env


def drawn_actions(env: VectorEnvironment, rng: np.random.Generator) -> dict[str, Any]:
    shapes = {name: (env.num_envs, group.num_agents, 2) for name, group in env.groups.items()}
    return {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def played(env: VectorEnvironment, num_steps: int, seed: int = 0) -> list[VectorStep]:
    rng = np.random.default_rng(seed)
    return [env.step(drawn_actions(env, rng)) for _ in range(num_steps)]


def test_agents_are_grouped_by_their_names() -> None:
    env = vmas_adapter.make("simple_tag")
    assert {name: group.agent_ids for name, group in env.groups.items()} == {
        "adversary": ("adversary_0", "adversary_1", "adversary_2"),
        "agent_0": ("agent_0",),
    }


def test_trajectories_are_those_of_vmas_itself() -> None:
    env = started(seed=7)
    original = vmas.make_env("simple_spread", num_envs=3)
    original.reset(seed=7)
    rng = np.random.default_rng(0)
    for _ in range(5):
        actions = drawn_actions(env, rng)
        step = env.step(actions).groups["agent"]
        observations, rewards, _, _ = original.step([torch.tensor(actions["agent"][:, n]) for n in range(3)])
        np.testing.assert_array_equal(step.obs, torch.stack(observations, dim=1).numpy())
        np.testing.assert_array_equal(step.reward, torch.stack(rewards, dim=1).numpy())


def test_on_the_host_arrays_are_views_of_tensors() -> None:
    obs = started().build_observation().groups["agent"].obs
    assert isinstance(obs, np.ndarray)
    assert not obs.flags.owndata


def test_elsewhere_arrays_are_tensors() -> None:
    env = started(device="cpu:0")
    step = env.step({"agent": torch.zeros(3, 3, 2)})
    group = step.groups["agent"]
    assert all(isinstance(array, torch.Tensor) for array in (group.obs, group.active, group.reward, step.episode_over))


def test_the_horizon_truncates_and_does_not_terminate() -> None:
    steps = played(started(max_steps=4), 4)
    assert [step.episode_over.tolist() for step in steps] == [[False] * 3] * 3 + [[True] * 3]
    assert steps[3].groups["agent"].truncated.all()
    assert not steps[3].groups["agent"].terminated.any()


def test_the_scenario_terminates_and_does_not_truncate() -> None:
    steps = played(started("balance", num_envs=8, max_steps=None), 100)
    ended = [step for step in steps if step.episode_over.any()]
    assert ended, "no package fell in 100 steps"
    over = ended[0].episode_over
    assert over.any()
    assert not over.all()
    assert (ended[0].groups["agent"].terminated == over[:, None]).all()
    assert not ended[0].groups["agent"].truncated.any()


def test_final_observations_are_those_before_the_reset() -> None:
    short, endless = started(max_steps=3), started(max_steps=None)
    last, unbroken = played(short, 3)[-1].groups["agent"], played(endless, 3)[-1].groups["agent"]
    assert last.final is not None
    np.testing.assert_array_equal(last.final.env, np.repeat(np.arange(3), 3))
    np.testing.assert_array_equal(last.final.agent, np.tile(np.arange(3), 3))
    np.testing.assert_array_equal(np.reshape(last.final.obs, (3, 3, -1)), unbroken.obs)
    assert (last.obs[..., 2:4] == 0.0).all(), "a new episode begins at rest"


def test_an_environment_that_goes_on_is_not_disturbed_by_the_reset_of_another() -> None:
    reset_env, left_env = started(), started()
    played(reset_env, 2)
    before = played(left_env, 2)[-1].groups["agent"].obs.copy()
    after = reset_env.reset(env_ids=[reset_env.env_ids[1]]).groups["agent"].obs
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert (after[1, :, 2:4] == 0.0).all()


def test_two_environments_do_not_draw_from_each_other() -> None:
    alone = [step.groups["agent"].obs.copy() for step in played(started(max_steps=2), 6)]
    one, other = started(max_steps=2), started(seed=5, max_steps=3)
    rng, other_rng = np.random.default_rng(0), np.random.default_rng(1)
    for expected in alone:
        np.testing.assert_array_equal(one.step(drawn_actions(one, rng)).groups["agent"].obs, expected)
        other.step(drawn_actions(other, other_rng))


def test_without_a_seed_no_two_environments_are_alike() -> None:
    firsts = []
    for _ in range(2):
        env = vmas_adapter.make("simple_spread")
        env.init_num_envs(1)
        firsts.append(env.reset().groups["agent"].obs)
    assert not np.array_equal(*firsts)


def out_of_range(env: VectorEnvironment) -> None:
    with pytest.raises(EnvironmentFailedError, match="out of bounds"):
        env.step({"agent": np.full((3, 3), 99)})


@pytest.mark.parametrize("use", [lambda env: played(env, 3), lambda env: env.reset(seed=3)])
def test_the_generators_of_the_process_are_left_alone(use: Callable[[VectorEnvironment], object]) -> None:
    expected = _draw_after(lambda: None)
    assert _draw_after(lambda: use(started(max_steps=2))) == expected


def test_the_generators_of_the_process_are_left_alone_after_an_error() -> None:
    expected = _draw_after(lambda: None)
    assert _draw_after(lambda: out_of_range(started(continuous_actions=False))) == expected


def _draw_after(use: Callable[[], object]) -> tuple[float, float, float]:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the generator that VMAS uses
    random.seed(1)
    use()
    return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "space"),
    [
        ({}, spaces.Box(-1.0, 1.0, (2,))),
        ({"continuous_actions": False}, spaces.Discrete(9)),
        ({"continuous_actions": False, "multidiscrete_actions": True}, spaces.MultiDiscrete([3, 3])),
    ],
)
def test_action_spaces_follow_the_options(options: dict[str, Any], space: spaces.Space[Any]) -> None:
    env = started(**options)
    assert env.groups["agent"].action_space == space
    sample = np.stack([[space.sample() for _ in range(3)] for _ in range(3)])
    assert env.step({"agent": sample}).groups["agent"].reward.shape == (3, 3)


def test_options_reach_the_scenario() -> None:
    assert vmas_adapter.make("simple_spread", n_agents=5).groups["agent"].num_agents == 5


def test_actions_beyond_their_range_are_clamped() -> None:
    one, other = started(), started()
    clamped, wild = (np.full((3, 3, 2), value, np.float32) for value in (1.0, 50.0))
    np.testing.assert_array_equal(
        one.step({"agent": clamped}).groups["agent"].obs, other.step({"agent": wild}).groups["agent"].obs
    )


def test_actions_may_be_read_only() -> None:
    actions = np.zeros((3, 3, 2), np.float32)
    actions.setflags(write=False)
    assert not started().step({"agent": actions}).episode_over.any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("simple_spread", {"no_such_option": 1}, "no_such_option"),
        ("simple_spread", {"num_envs": 4}, "RelayRL sets it"),
        ("simple_spread", {"device": "cuda:77"}, "cannot be used"),
        ("balance", {"continuous_actions": True, "multidiscrete_actions": True}, "multidiscrete_actions"),
    ],
)
def test_wrong_options_are_configuration_errors(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vmas_adapter.make(name, **options)


def test_an_unknown_scenario_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'simple_spread'"):
        vmas_adapter.make("simple_spred")


@pytest.mark.parametrize("misuse", [lambda env: env.reset(), lambda env: env.step({})])
def test_nothing_works_before_there_are_environments(misuse: Callable[[VectorEnvironment], object]) -> None:
    with pytest.raises(EnvError, match="init_num_envs"):
        misuse(vmas_adapter.make("simple_spread"))


def test_stepping_before_reset_is_refused() -> None:
    env = vmas_adapter.make("simple_spread")
    env.init_num_envs(2)
    with pytest.raises(EnvError, match="before reset"):
        env.step({})


def test_importing_vmas_prints_nothing() -> None:
    program = "from relayrl.envs.adapters.vmas_scenarios import known_names; known_names()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("", "")
