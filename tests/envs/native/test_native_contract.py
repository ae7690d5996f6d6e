"""Every native environment keeps the public environment contract, with NumPy arrays and with torch tensors."""

from __future__ import annotations

from typing import Any

import pytest

from relayrl.envs import native
from relayrl.testing.env_contract import Outcome, check_environment

SHORT_EPISODES: dict[str, dict[str, Any]] = {
    "CartPole": {"max_episode_steps": 12},
    "Pendulum": {"max_episode_steps": 9},
    "MountainCarContinuous": {"max_episode_steps": 9},
    "Acrobot": {"max_episode_steps": 9},
    "rooms": {"max_episode_steps": 9, "room_size": 2},
    "dungeon_escape": {"max_episode_steps": 9, "size": 3},
    "baton_pass": {"max_episode_steps": 9, "size": 3},
    "pong": {"max_episode_steps": 9},
    "soccer": {"max_episode_steps": 9},
}


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("name", native.names())
def test_native_environment_keeps_the_contract(name: str, device: str) -> None:
    options = SHORT_EPISODES.get(name, {"max_cycles": 7})
    report = check_environment(lambda _: native.make(name, device=device, **options), num_steps=24)
    assert report.passed, str(report)
    for check in ("an_episode_begins_where_one_ends", "state_round_trip", "environments_do_not_depend_on_their_number"):
        assert report.of(check).outcome is Outcome.PASSED


@pytest.mark.parametrize("name", [name for name in native.names() if name.startswith("simple")])
def test_continuous_actions_in_double_precision_keep_the_contract(name: str) -> None:
    def make(_: int) -> native.BatchedEnvironment:
        return native.make(name, continuous_actions=True, dtype="float64", max_cycles=7)

    report = check_environment(make, num_steps=24)
    assert report.passed, str(report)
