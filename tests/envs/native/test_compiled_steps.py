"""Native environments that step by compiled kernels give NumPy's numbers, to the last bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from relayrl.compiled import loader
from relayrl.envs.native import native_registry
from relayrl.envs.native.array_namespace import namespace_of
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.classic import cart_pole
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.particles import controls, geometry, particle_worlds
from relayrl.testing.random_play import random_actions

pytestmark = pytest.mark.skipif(loader.kernels() is None, reason="needs the compiled kernels")
USERS = (cart_pole, controls, geometry, particle_worlds)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("CartPole", {}),
    ("CartPole", {"sutton_barto_reward": True, "max_episode_steps": 20}),
    ("simple_spread", {"continuous_actions": True}),
    ("simple_spread", {"N": 1}),
    ("simple_world_comm", {"continuous_actions": True}),
    ("simple_adversary", {"continuous_actions": True}),
    ("simple_spread", {"N": 5, "num_agent_neighbors": 2, "terminate_on_success": True}),
    ("simple_tag", {"num_good": 2, "num_obstacles": 0}),
    ("simple_push", {}),
    ("simple_world_comm", {}),
    ("simple_speaker_listener", {}),
    ("simple_adversary", {"N": 3}),
]


def play(env: BatchedEnvironment, num_worlds: int, num_steps: int = 120) -> list[bytes]:
    """All that comes out of random play, and the state that it leaves."""
    env.init_num_envs(num_worlds)
    seen, rng, found = env.reset(seed=3), np.random.default_rng(0), []
    for _ in range(num_steps):
        seen = env.step(random_actions(env.groups, seen.groups, rng))
        for group in seen.groups.values():
            found += [np.asarray(column).tobytes() for column in (group.obs, group.reward, group.terminated)]
    return [*found, *(array.tobytes() for array in env.get_state().values())]


@pytest.mark.parametrize("num_worlds", [1, 7, 65])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_steps_are_numpys_to_the_last_bit(
    name: str, options: dict[str, Any], num_worlds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = play(native_registry.make(name, **options), num_worlds)
    for module in USERS:
        monkeypatch.setattr(module, "step_kernels", lambda *_: None)
    assert compiled == play(native_registry.make(name, **options), num_worlds)


def test_bodies_that_overlap_fully_are_pushed_as_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr(particle_worlds, "step_kernels", lambda *_: None)
            monkeypatch.setattr(geometry, "step_kernels", lambda *_: None)
        env = native_registry.make("simple_spread", N=4)
        env.init_num_envs(3)
        env.reset(seed=0)
        env.worlds.position[:, :3] = 0.25  # three in one place, whose distance is 0
        env.worlds.position[0, 3] = np.nan
        env.worlds.observe()
        for _ in range(3):
            env.step({name: np.ones((3, 4), np.int64) for name in env.groups})
        found.append([array.tobytes() for array in env.get_state().values()])
    assert found[0] == found[1]


class _Heavy(cart_pole.CartPoleWorlds):
    """Somebody's own equations."""

    def _accelerate(self, action: Any) -> None:
        super()._accelerate(action)
        self._accelerations *= 0.0


def test_a_subclass_is_obeyed() -> None:
    settings = cart_pole.CartPoleSettings()
    blueprint = cart_pole.blueprint(settings)
    object.__setattr__(blueprint, "build", partial(_Heavy, settings, blueprint.xp))
    env = BatchedEnvironment(blueprint)
    env.init_num_envs(2)
    env.reset(seed=0)
    before = env.get_state()["motion"]
    env.step({name: np.ones((2, 1), np.int64) for name in env.groups})
    np.testing.assert_array_equal(env.get_state()["motion"][:, 1::2], before[:, 1::2])  # no speed has changed


@pytest.mark.parametrize(("device", "dtype", "has_kernels"), [("cpu", "float32", True), ("cpu", "float64", False)])
def test_kernels_are_for_single_precision_alone(device: str, dtype: Any, has_kernels: bool) -> None:
    assert (step_kernels(namespace_of(device), dtype) is not None) == has_kernels
