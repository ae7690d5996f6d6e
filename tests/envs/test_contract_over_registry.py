"""The environment contract holds for every way to make an environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.testing.env_contract import Outcome, check_environment

TOYS = "relayrl.testing.toy_environments"

ENVIRONMENTS: list[tuple[str, dict[str, Any], int]] = [
    ("CartPole-v1", {}, 60),
    ("Pendulum-v1", {}, 210),
    ("FrozenLake-v1", {}, 40),
    ("mpe2:simple_spread_v3", {"max_cycles": 7}, 20),
    ("mpe2:simple_speaker_listener_v4", {"max_cycles": 7}, 20),
    ("mpe2:simple_tag_v3", {"max_cycles": 7, "continuous_actions": True}, 20),
    ("pettingzoo:classic.connect_four_v3", {}, 60),
    ("pettingzoo:classic.tictactoe_v3", {}, 20),
    ("pettingzoo:classic.rps_v2", {"max_cycles": 5}, 20),
    ("vmas:simple_spread", {"max_steps": 7}, 20),
    ("vmas:balance", {"max_steps": 7, "continuous_actions": False}, 20),
    ("vmas:simple_tag", {"max_steps": 7, "device": "cpu:0"}, 20),
    (f"{TOYS}:CountingEnv", {}, 20),
    (f"{TOYS}:CountingEnv", {"terminate_at": None, "truncate_at": 3}, 20),
    (f"{TOYS}:Crashing", {"at_step": 1_000_000}, 20),
    (f"{TOYS}:DyingAgents", {}, 20),
    (f"{TOYS}:Herd", {}, 20),
    (f"{TOYS}:MaskedBandit", {}, 20),
    (f"{TOYS}:HiddenSign", {"episode_length": 4}, 20),
    (f"{TOYS}:MatrixGame", {}, 20),
    (f"{TOYS}:MatrixGame", {"num_rounds": 3}, 20),
    (f"{TOYS}:NestedSpaces", {}, 20),
    (f"{TOYS}:RandomWalk", {}, 45),
    (f"{TOYS}:Slow", {"step_s": 1e-5}, 20),
    (f"{TOYS}:TakingTurns", {}, 20),
    (f"{TOYS}:TorchCounting", {}, 20),
]


@pytest.mark.parametrize(("name", "options", "num_steps"), ENVIRONMENTS)
def test_environments_keep_the_contract(name: str, options: dict[str, Any], num_steps: int) -> None:
    def make(num_envs: int) -> VectorEnvironment:
        return make_vector(name, EnvSettings(num_envs=num_envs, options=options))

    report = check_environment(make, num_steps=num_steps)
    assert report.passed, str(report)
    assert report.of("an_episode_begins_where_one_ends").outcome is Outcome.PASSED


def users_factory(*, length: int) -> gymnasium.Env[Any, Any]:
    """An environment as a user would bring it."""
    return gymnasium.make("MountainCar-v0", max_episode_steps=length)


def test_an_environment_from_a_factory_keeps_the_contract() -> None:
    settings = EnvSettings(options={"length": 8})
    report = check_environment(
        lambda n: make_vector(users_factory, settings.model_copy(update={"num_envs": n})), num_steps=20
    )
    assert report.passed, str(report)


@pytest.mark.parametrize("name", ["CartPole-v1", "mpe2:simple_spread_v3", f"{TOYS}:RandomWalk", f"{TOYS}:CountingEnv"])
def test_states_of_these_environments_are_saved_exactly(name: str) -> None:
    report = check_environment(lambda n: make_vector(name, EnvSettings(num_envs=n)), num_steps=30)
    assert report.of("state_round_trip").outcome is Outcome.PASSED


@pytest.mark.slow
def test_environments_in_a_worker_process_keep_the_contract() -> None:
    report = check_environment(
        lambda n: make_vector(f"{TOYS}:TakingTurns", EnvSettings(num_envs=n, workers=1)), num_steps=20
    )
    assert report.passed, str(report)
