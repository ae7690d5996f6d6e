"""Native environments that step by compiled kernels give NumPy's numbers, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from relayrl.compiled import loader
from relayrl.envs.native import native_registry
from relayrl.envs.native.array_namespace import CACHE_LINE, namespace_of
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.classic import cart_pole
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.particles import controls, geometry, particle_worlds
from relayrl.envs.native.particles.scenarios import simple_spread
from relayrl.testing.random_play import random_actions

pytestmark = pytest.mark.skipif(loader.kernels() is None, reason="needs the compiled kernels")
USERS = (cart_pole, controls, geometry, particle_worlds, simple_spread)
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


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets environments that are made from now on step by NumPy."""

    def switch() -> None:
        for module in USERS:
            monkeypatch.setattr(module, "step_kernels", lambda *_: None)

    return switch


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
    name: str, options: dict[str, Any], num_worlds: int, numpy_alone: Callable[[], None]
) -> None:
    compiled = play(native_registry.make(name, **options), num_worlds)
    numpy_alone()
    assert compiled == play(native_registry.make(name, **options), num_worlds)


@pytest.mark.parametrize("name", ["simple_spread", "simple_tag"])
def test_bodies_that_overlap_fully_are_pushed_as_in_numpy(name: str, numpy_alone: Callable[[], None]) -> None:
    found = []
    for is_compiled in (True, False):
        if not is_compiled:
            numpy_alone()
        env = native_registry.make(name)
        env.init_num_envs(3)
        env.reset(seed=0)
        env.worlds.position[:, :2] = 0.25  # two in one place, whose distance is 0
        env.worlds.position[0, 2] = np.nan
        env.worlds.observe()
        for _ in range(3):
            env.step({key: np.ones((3, group.num_agents), np.int64) for key, group in env.groups.items()})
        arrays = *env.get_state().values(), *env.worlds.observations.values(), *env.worlds.rewards.values()
        found.append([array.tobytes() for array in arrays])
    assert found[0] == found[1]


def play_spread(num_worlds: int, **options: Any) -> list[bytes]:
    """All arrays of every step, of episodes that begin at different times and reach their goal, their limit or both."""
    env = native_registry.make("simple_spread", max_cycles=9, **options)
    ids, rng, found, num_terminated = env.init_num_envs(num_worlds), np.random.default_rng(0), [], 0
    seen = env.reset(seed=5)
    worlds: Any = env.worlds
    n = worlds.layout.num_agents
    for t in range(40):
        if t == 4:
            seen = env.reset(env_ids=ids[::3])
        if t % 6 == 5:  # every other world is as good as done
            worlds.position[:, :n, ::2] = worlds.position[:, n:, ::2]
            worlds.velocity[..., ::2] = 0.0
            worlds.observe()
        step = env.step(random_actions(env.groups, seen.groups, rng))
        (group,) = step.groups.values()
        num_terminated += int(group.terminated.sum())
        final = () if group.final is None else (group.final.obs, group.final.env, group.final.agent)
        columns = group.obs, group.reward, group.terminated, group.truncated, step.episode_over, *final
        arrays = *columns, *worlds.state.values(), *worlds.derived.values()
        found += [np.ascontiguousarray(array).tobytes() for array in arrays]
        seen = step
    assert bool(num_terminated) == options.get("terminate_on_success", False)
    return found


@pytest.mark.parametrize("num_worlds", [1, 2, 7, 300])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"N": 1},
        {"N": 1, "num_agent_neighbors": 2, "continuous_actions": True},
        {"N": 2, "local_ratio": 1.0},
        {"N": 4, "local_ratio": 0.0, "terminate_on_success": True},
        {"N": 4, "num_agent_neighbors": 2, "num_landmark_neighbors": 3, "terminate_on_success": True},
        {"N": 3, "num_agent_neighbors": 5, "num_landmark_neighbors": 6, "continuous_actions": True},
        {"N": 7, "num_landmark_neighbors": 7, "continuous_actions": True, "terminate_on_success": True},
        {"N": 11, "num_agent_neighbors": 1, "local_ratio": 0.3},
    ],
    ids=str,
)
def test_simple_spread_has_numpys_bits_with_every_option(
    options: dict[str, Any], num_worlds: int, numpy_alone: Callable[[], None]
) -> None:
    compiled = play_spread(num_worlds, **options)
    numpy_alone()
    assert compiled == play_spread(num_worlds, **options)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5, 7)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "float64", "int64"])
def test_arrays_begin_at_a_cache_line(shape: tuple[int, ...], dtype: Any) -> None:
    array = namespace_of("cpu").zeros(shape, dtype)
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.dtype(dtype), True)
    assert array.size == 0 or array.__array_interface__["data"][0] % CACHE_LINE == 0
    assert not array.any()


def test_every_number_of_threads_gives_the_same_bits() -> None:
    found = set()
    try:
        for num_threads in (1, 2, 3, 16):
            loader.set_num_threads(num_threads)
            found.add(hash(tuple(play_spread(2500, N=4, continuous_actions=True))))
    finally:
        loader.set_num_threads(None)
    assert len(found) == 1


class _Generous(simple_spread.SimpleSpreadWorlds):
    """Somebody's own reward."""

    def reward(self) -> None:
        super().reward()
        self._reward += 100.0


def test_a_subclass_of_simple_spread_is_obeyed() -> None:
    rewards = []
    for worlds in (simple_spread.SimpleSpreadWorlds, _Generous):
        settings = simple_spread.SimpleSpreadSettings()
        blueprint = simple_spread.blueprint(settings)
        layout = blueprint.build(1).layout
        object.__setattr__(blueprint, "build", partial(worlds, settings, layout, blueprint.groups))
        env = BatchedEnvironment(blueprint)
        env.init_num_envs(2)
        env.reset(seed=0)
        step = env.step({name: np.ones((2, 3), np.int64) for name in env.groups})
        rewards.append(np.stack([group.reward for group in step.groups.values()]))
    np.testing.assert_array_equal(rewards[0] + np.float32(100.0), rewards[1])


@pytest.mark.parametrize(("dtype", "is_compiled"), [("float32", True), ("float64", False)])
def test_simple_spread_steps_by_one_kernel_in_single_precision(dtype: str, is_compiled: bool) -> None:
    env = native_registry.make("simple_spread", dtype=dtype)
    env.init_num_envs(1)
    assert (env.worlds._step is not None) == is_compiled


def test_without_kernels_simple_spread_steps_by_numpy() -> None:
    program = (
        "from relayrl.envs.native import native_registry\n"
        "import numpy as np\n"
        "env = native_registry.make('simple_spread')\n"
        "env.init_num_envs(3)\n"
        "env.reset(seed=1)\n"
        "for _ in range(30): env.step({name: np.ones((3, 3), np.int64) for name in env.groups})\n"
        "print(env.worlds._step is None, env.get_state()['velocity'].tobytes().hex())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {loader.VARIABLE: value},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for value in ("", loader.OFF)
    ]
    assert [run[0] for run in runs] == ["False", "True"]
    assert runs[0][1] == runs[1][1]


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
