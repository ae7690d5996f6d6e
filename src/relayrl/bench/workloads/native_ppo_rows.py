"""W2k and W4: PPO and MAPPO where many environments, or many agents, make arithmetic the bound; beside what bounds them.

The floor of the native rows is the arithmetic alone: the matrix products of acting and learning, done by NumPy on one thread
with nothing around them. mpe2's floor is mpe2 itself, stepped by one core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import threadpoolctl

from relayrl.bench.rows import Row, interleaved
from relayrl.bench.workloads.ppo_rows import EPOCHS, ROLLOUT_STEPS, UNIT, steps_per_s, workload_settings
from relayrl.engines.settings.run_settings import RunSettings

REPETITIONS = 3
FLOOR_ROWS, FLOOR_S = 2048, 0.03
MPE2, MPE2_ENVS = "mpe2:simple_spread_v3", 8
Sizes = tuple[int, ...]


def w2k_rows() -> list[Row]:
    """PPO on 1,024 native CartPoles, 32 steps a rollout."""
    settings = workload_settings("native:CartPole", 1024, 5 * 1024 * 32, rollout_steps=32)
    return [_row("W2k PPO native:CartPole, 1,024 environments", settings, [(4, 64, 64, 2), (4, 64, 64, 1)], 1)]


def w4_rows() -> list[Row]:
    """MAPPO and IPPO on simple_spread."""
    rows = [_mpe2_row()]
    for algo, seen in (("mappo", 3 * 18 + 3), ("ippo", 18)):
        settings = workload_settings("native:simple_spread", 64, 4 * 64 * ROLLOUT_STEPS, algo=algo)
        networks = [(18, 64, 64, 5), (seen, 64, 64, 1)]
        rows.append(_row(f"W4c {algo.upper()} native:simple_spread, 64 environments", settings, networks, 3))
    return rows


def _row(name: str, settings: RunSettings, networks: Sequence[Sizes], num_agents: int) -> Row:
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        ours, floor = interleaved(
            lambda: steps_per_s(settings), lambda: 1.0 / (num_agents * _row_seconds(networks)), REPETITIONS
        )
    return Row(name, ours, UNIT, "its matrix products alone, NumPy, one thread", floor, ours / floor, 1.0)


def _row_seconds(networks: Sequence[Sizes]) -> float:
    """Seconds that NumPy needs for one row's products: one forward pass to act, and both passes of every epoch."""
    seconds = 0.0
    for sizes in networks:
        layers = [_Layer(i, fan_in, fan_out) for i, (fan_in, fan_out) in enumerate(pairwise(sizes))]
        for layer in layers:
            seconds += (1 + EPOCHS) * _seconds_each(layer.forward) + EPOCHS * _seconds_each(layer.backward)
    return seconds / FLOOR_ROWS


class _Layer:
    """The products of one layer for `FLOOR_ROWS` rows."""

    def __init__(self, index: int, fan_in: int, fan_out: int) -> None:
        rng = np.random.default_rng(0)
        shapes = ((FLOOR_ROWS, fan_in), (fan_out, fan_in), (FLOOR_ROWS, fan_out))
        self._x, self._weight, self._delta = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        self._has_input_gradient = index > 0

    def forward(self) -> None:
        np.matmul(self._x, self._weight.T)

    def backward(self) -> None:
        np.matmul(self._delta.T, self._x)
        if self._has_input_gradient:
            np.matmul(self._delta, self._weight)


def _seconds_each(work: Callable[[], None]) -> float:
    work()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < FLOOR_S:
        work()
        count += 1
    return (time.perf_counter() - start) / count


def _mpe2_row() -> Row:
    settings = workload_settings(MPE2, MPE2_ENVS, 2 * MPE2_ENVS * ROLLOUT_STEPS, algo="mappo", workers=2)
    ours, floor = interleaved(lambda: steps_per_s(settings), _mpe2_alone, 2)
    name = f"W4a MAPPO {MPE2}, {MPE2_ENVS} environments, 2 workers"
    return Row(name, ours, UNIT, "mpe2 alone, random actions, one core", floor, ours / floor, 1.2)


def _mpe2_alone() -> float:
    from mpe2 import simple_spread_v3

    env = simple_spread_v3.parallel_env(continuous_actions=False)
    env.reset(seed=0)
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(500):
            env.step({agent: space.sample() for agent, space in spaces.items()})
            if not env.agents:
                env.reset()
        rates.append(500 / (time.perf_counter() - start))
    env.close()
    return statistics.median(rates)
