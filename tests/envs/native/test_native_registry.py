"""Names, options and spaces of the native environments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from native_originals import MPE2_VERSIONS, ParticleTwin, random_actions, twin_of, world_state

from relayrl.envs import native
from relayrl.envs.agent_groups import group_agents
from relayrl.envs.environment_contract import SINGLE_AGENT
from relayrl.errors import ConfigError, UnknownNameError

WITHOUT_ORIGINAL = {"rooms", "dungeon_escape", "baton_pass", "pong", "soccer"}
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in native.names() if name not in WITHOUT_ORIGINAL]
CASES += [(name, {"continuous_actions": True}) for name in MPE2_VERSIONS]
CASES += [
    ("simple_spread", {"N": 6, "num_agent_neighbors": 2}),
    ("simple_tag", {"num_good": 3, "num_adversaries": 2, "num_obstacles": 4}),
    ("simple_adversary", {"N": 5}),
    ("simple_world_comm", {"num_good": 3, "num_forests": 1, "num_food": 4, "num_obstacles": 2}),
]


def test_names_are_the_documented_ones() -> None:
    assert native.names() == (
        *("CartPole", "Pendulum", "MountainCarContinuous", "Acrobot"),
        *("simple_spread", "simple_speaker_listener", "simple_reference", "simple_tag"),
        *("simple_adversary", "simple_push", "simple_crypto", "simple_world_comm"),
        *("rooms", "dungeon_escape", "baton_pass", "pong", "soccer"),
    )


@pytest.mark.parametrize(("name", "options"), CASES)
def test_spaces_and_groups_are_those_of_the_original(name: str, options: dict[str, Any]) -> None:
    env, twin = native.make(name, **options), twin_of(name, options)
    spaces = {agent: twin.spaces(agent) for agent in twin.agents}
    groups = group_agents(
        twin.agents, {a: pair[0] for a, pair in spaces.items()}, {a: pair[1] for a, pair in spaces.items()}
    )
    assert list(env.groups) == list(groups)
    for group, expected in zip(env.groups.values(), groups.values(), strict=True):
        assert group.agent_ids == expected.agent_ids
        assert group.observation_space == expected.observation_space
        assert group.observation_space.dtype == expected.observation_space.dtype
        assert group.action_space == expected.action_space
        assert group.action_space.dtype == expected.action_space.dtype
    assert env.state_space == twin.state_space
    twin.close()


@pytest.mark.parametrize("name", ["CartPole", "Pendulum", "MountainCarContinuous", "Acrobot", "rooms"])
def test_single_agent_environments_have_the_one_group_of_single_agents(name: str) -> None:
    assert list(native.make(name).groups) == [SINGLE_AGENT]


@pytest.mark.parametrize("name", MPE2_VERSIONS)
def test_global_state_is_the_originals(name: str) -> None:
    env = native.make(name, dtype="float64")
    env.init_num_envs(2)
    env.reset(seed=4)
    twin = ParticleTwin(name, {})
    step = env.step(random_actions(env, np.random.default_rng(0)))
    twin.begin(world_state(env, 1))
    np.testing.assert_allclose(step.state[1], twin.global_state(), rtol=1e-6, atol=1e-7)
    twin.close()


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'simple_spread'"):
        native.make("simple_spred")


def test_an_unknown_option_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'max_cycles'"):
        native.make("simple_spread", max_cycle=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("simple_spread", {"N": 0}),
        ("simple_spread", {"local_ratio": 1.5}),
        ("simple_tag", {"num_good": 0}),
        ("simple_world_comm", {"num_food": 0}),
        ("CartPole", {"dtype": "float16"}),
        ("CartPole", {"device": "no-such-device"}),
        ("Pendulum", {"max_episode_steps": 0}),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        native.make(name, **options)


def test_numpy_environments_do_not_import_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from relayrl.envs import native\n"
        "env = native.make('simple_spread'); env.init_num_envs(2); env.reset(seed=0)\n"
        "env.step({'agent': np.zeros((2, 3), int)})\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
