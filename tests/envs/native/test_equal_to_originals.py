"""Every native environment gives its original's observations, rewards and flags, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from native_originals import MPE2_VERSIONS, compare_run

NUM_STEPS = 1000

CLASSIC = [
    ("CartPole", {}),
    ("CartPole", {"sutton_barto_reward": True, "max_episode_steps": 20}),
    ("Pendulum", {}),
    ("Pendulum", {"g": 9.81, "max_episode_steps": 60}),
    ("MountainCarContinuous", {"max_episode_steps": 300}),
    ("Acrobot", {"max_episode_steps": 150}),
]

PARTICLES = [(name, {"continuous_actions": continuous}) for name in MPE2_VERSIONS for continuous in (False, True)]

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("simple_spread", {"N": 1, "max_cycles": 7}),
    ("simple_spread", {"N": 5, "local_ratio": 0.2}),
    ("simple_spread", {"terminate_on_success": True, "N": 1, "local_ratio": 0.0, "max_cycles": 60}),
    ("simple_spread", {"num_agent_neighbors": 1, "num_landmark_neighbors": 2}),
    ("simple_spread", {"num_agent_neighbors": 5, "num_landmark_neighbors": 4}),
    ("simple_reference", {"local_ratio": 0.9}),
    ("simple_tag", {"num_good": 2, "num_adversaries": 2, "num_obstacles": 0}),
    ("simple_tag", {"num_good": 2, "num_agent_neighbors": 2, "num_landmark_neighbors": 3}),
    ("simple_tag", {"num_adversaries": 5, "terminate_on_success": True, "max_cycles": 50}),
    ("simple_adversary", {"N": 4}),
    ("simple_adversary", {"N": 3, "num_agent_neighbors": 2, "num_landmark_neighbors": 1}),
    ("simple_world_comm", {"num_good": 1, "num_adversaries": 1, "num_forests": 0, "num_food": 1}),
    ("simple_world_comm", {"num_good": 3, "num_adversaries": 2, "num_obstacles": 2, "num_forests": 3, "num_food": 3}),
]


def _label(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())


@pytest.mark.parametrize(("name", "options"), CLASSIC, ids=_label)
def test_classic_control_equals_gymnasium(name: str, options: dict[str, Any]) -> None:
    # Acrobot is chaotic: 1e-16 grows tenfold every few steps, so that even doubles must be synchronised within an episode
    sync_every = 10 if name == "Acrobot" else NUM_STEPS
    # MountainCarContinuous turns an action that it clips into a double, which moves its float32 state by up to one bit
    outside = 0.0 if name == "MountainCarContinuous" else 0.1
    ended, terminated = compare_run(
        name, options, num_steps=NUM_STEPS, num_worlds=2, sync_every=sync_every, outside=outside
    )
    assert ended >= 4
    assert terminated > 0 or name != "CartPole"


@pytest.mark.parametrize(("name", "options"), PARTICLES, ids=_label)
def test_particle_world_equals_mpe2(name: str, options: dict[str, Any]) -> None:
    ended, _ = compare_run(name, options, num_steps=NUM_STEPS, num_worlds=1, sync_every=NUM_STEPS)
    assert ended == NUM_STEPS // 25


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=_label)
def test_particle_options_mean_the_same_as_in_mpe2(name: str, options: dict[str, Any]) -> None:
    ended, terminated = compare_run(name, options, num_steps=200, num_worlds=2, sync_every=NUM_STEPS)
    assert ended >= 3
    assert (terminated > 0) == options.get("terminate_on_success", False)
