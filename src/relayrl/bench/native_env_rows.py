"""Native environments beside their originals, both with random actions, on one core in this process.

A row is environment steps per second (all agents of one environment acting once). The originals are stepped as their users
step them: one Python environment of gymnasium or mpe2 with resets, gymnasium's own vector CartPole, VMAS with as many
environments and one torch thread. VMAS does not reset finished environments by itself and is not asked to; the native figures
include resets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from relayrl.bench.rows import Row, interleaved, seconds_of
from relayrl.envs import native

REPETITIONS = 5
CHUNK_S = 0.06
"""Wall seconds of one measurement; ours and the other's alternate."""

CARTPOLE_TARGET = 1.0
MPE2_TARGET = 50.0
MPE2_LARGE_TARGET = 300.0
VMAS_TARGET = 3.0

_CLASSIC = {
    "Pendulum": ("Pendulum-v1", 20.0),
    "MountainCarContinuous": ("MountainCarContinuous-v0", 5.0),  # its original is a dozen lines on floats: 0.3M steps/s
    "Acrobot": ("Acrobot-v1", 10.0),
}
"""The original, and how many times faster 64 environments must be."""
_PARTICLES = {
    "simple_spread": "simple_spread_v3",
    "simple_speaker_listener": "simple_speaker_listener_v4",
    "simple_reference": "simple_reference_v3",
    "simple_tag": "simple_tag_v3",
    "simple_adversary": "simple_adversary_v3",
    "simple_push": "simple_push_v3",
    "simple_crypto": "simple_crypto_v3",
    "simple_world_comm": "simple_world_comm_v3",
}

Stepper = Callable[[], int]
"""Makes some steps and says how many environment steps they were."""


def native_env_rows() -> list[Row]:
    """A row for every native environment, and more for those with a vector implementation to beat."""
    rows = [
        _row("CartPole", num_envs, _gymnasium_vector(num_envs), "gymnasium CartPoleVectorEnv", CARTPOLE_TARGET)
        for num_envs in (8, 64, 1024)
    ]
    rows += [
        _row(name, 64, _gymnasium_single(env_id), f"gymnasium {env_id}", target)
        for name, (env_id, target) in _CLASSIC.items()
    ]
    rows += [_row(name, 64, _mpe2_single(module), f"mpe2 {module}", MPE2_TARGET) for name, module in _PARTICLES.items()]
    rows.append(
        _row("simple_spread", 1024, _mpe2_single("simple_spread_v3"), "mpe2 simple_spread_v3", MPE2_LARGE_TARGET)
    )
    from relayrl.models.networks.one_thread import one_thread

    with one_thread():
        rows += [
            _row(
                "simple_spread",
                n,
                _vmas_spread(n),
                "VMAS simple_spread, as many environments",
                VMAS_TARGET,
                continuous=True,
            )
            for n in (64, 1024)
        ]
    return rows


def _row(name: str, num_envs: int, other: Stepper, against: str, target: float, *, continuous: bool = False) -> Row:
    options = {"continuous_actions": True} if continuous else {}
    ours = _native(name, num_envs, options)
    figure, against_figure = interleaved(lambda: _rate(ours), lambda: _rate(other), REPETITIONS)
    return Row(
        name=f"native:{name}, {num_envs} environments",
        figure=figure,
        unit="env steps/s",
        against=against,
        against_figure=against_figure,
        ratio=figure / against_figure,
        target=target,
    )


def _rate(step: Stepper) -> float:
    """Environment steps per second over about `CHUNK_S`, after a short warm-up."""
    step()
    num_steps, seconds = 0, 0.0
    while seconds < CHUNK_S:

        def chunk() -> None:
            nonlocal num_steps
            num_steps += step()

        seconds += seconds_of(chunk)
    return num_steps / seconds


def _native(name: str, num_envs: int, options: dict[str, Any]) -> Stepper:
    env = native.make(name, **options)
    env.init_num_envs(num_envs)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(16):
        batch = {}
        for group_name, group in env.groups.items():
            shape = (num_envs, group.num_agents)
            space: Any = group.action_space
            if isinstance(space, gymnasium.spaces.Discrete):
                batch[group_name] = rng.integers(space.n, size=shape)
            else:
                drawn = rng.uniform(space.low, space.high, (*shape, *space.shape))
                batch[group_name] = drawn.astype(np.float32)
        batches.append(batch)

    def step() -> int:
        for batch in batches:
            env.step(batch)
        return len(batches) * num_envs

    return step


def _gymnasium_vector(num_envs: int) -> Stepper:
    env = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(2, size=(16, num_envs))

    def step() -> int:
        for action in actions:
            env.step(action)
        return len(actions) * num_envs

    return step


def _gymnasium_single(env_id: str) -> Stepper:
    env = gymnasium.make(env_id, disable_env_checker=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]

    def step() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    return step


def _mpe2_single(module: str) -> Stepper:
    env = importlib.import_module(f"mpe2.{module}").parallel_env()
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [{a: int(rng.integers(env.action_space(a).n)) for a in env.possible_agents} for _ in range(25)]

    def step() -> int:
        for action in actions:
            env.step(action)
            if not env.agents:
                env.reset()
        return len(actions)

    return step


def _vmas_spread(num_envs: int) -> Stepper:
    import torch
    import vmas

    env = vmas.make_env("simple_spread", num_envs=num_envs, device="cpu", continuous_actions=True, n_agents=3)
    env.reset(seed=0)
    actions = [[torch.rand(num_envs, 2) * 2 - 1 for _ in range(3)] for _ in range(4)]

    def step() -> int:
        with torch.no_grad():
            for action in actions:
                env.step(action)
        return len(actions) * num_envs

    return step
