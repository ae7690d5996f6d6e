"""Dense steps of native environments by one kernel each, for the worlds that the kernels know exactly.

The kernels work on the environment's own arrays, so that `step_dense`, checkpoints and pictures go on from where they stop.
Taken are worlds of exactly RelayRL's own types on a CUDA device, in float32, with the options that the kernels have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.environments.classic_kernels import cart_pole_kernel, pendulum_kernel
from relayrl.accelerator.gpu.environments.spread_kernel import spread_kernel
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.classic.cart_pole import CartPoleWorlds
from relayrl.envs.native.classic.pendulum import PendulumWorlds
from relayrl.envs.native.dense_step import DenseGroupStep, DenseStep
from relayrl.envs.native.particles.scenarios.simple_spread import SimpleSpreadWorlds
from relayrl.models.networks.built_in import BuiltIns

BLOCK = 64
MAX_AGENTS = 6
"""Of a particle world: more do not fit into registers."""
_ENVIRONMENTS = BuiltIns(BatchedEnvironment)
_WORLDS = BuiltIns(CartPoleWorlds, PendulumWorlds, SimpleSpreadWorlds)

Step = Callable[[Mapping[str, Tensor]], DenseStep]
"""`BatchedEnvironment.step_dense`, or what stands in for it."""


def fused_step(env: BatchedEnvironment) -> FusedStep | None:
    """A step by a kernel; None where the environment is not exactly one that they know, or not on a CUDA device."""
    return known_step(env) if torch.device(env.device).type == "cuda" else None


def known_step(env: BatchedEnvironment) -> FusedStep | None:
    """The same wherever the tensors lie: Triton's interpreter takes those of the host."""
    if env not in _ENVIRONMENTS or not env.steps_densely or env.worlds not in _WORLDS:
        return None
    worlds: Any = env.worlds
    if worlds.dtype != "float32" or not isinstance(env._limit, int):
        return None
    if type(worlds) is SimpleSpreadWorlds:
        options = worlds._options
        sees_all = options.num_agent_neighbors is None and options.num_landmark_neighbors is None
        if not sees_all or options.continuous_actions or not 2 <= options.N <= MAX_AGENTS:
            return None
    return FusedStep(env)


class FusedStep:
    """Steps one environment; made by `fused_step`, which knows which."""

    def __init__(self, env: BatchedEnvironment) -> None:
        self._env = env
        (self._name,) = env.groups
        self._launch = {
            CartPoleWorlds: self._cart_pole,
            PendulumWorlds: self._pendulum,
            SimpleSpreadWorlds: self._spread,
        }[type(env.worlds)]

    def __call__(self, actions: Mapping[str, Tensor]) -> DenseStep:
        env, name = self._env, self._name
        lanes = env._lanes[name]
        final = torch.empty_like(lanes.obs)
        self._launch(actions[name].contiguous(), final)
        step = lanes.step(None)
        group = DenseGroupStep(step.obs, step.reward, step.terminated, step.truncated)
        return DenseStep({name: group}, {name: final}, env._over)

    def _counters(self) -> tuple[Any, ...]:
        env = self._env
        flags = env.worlds.terminated, env._truncated, env._over
        return env._elapsed_steps, env._episode, env._stream_key, *flags

    def _grid(self) -> tuple[int]:
        return (triton.cdiv(self._env.num_envs, BLOCK),)

    def _cart_pole(self, action: Tensor, final: Tensor) -> None:
        env, name = self._env, self._name
        worlds: Any = env.worlds
        cart_pole_kernel[self._grid()](
            worlds.state["motion"], action, worlds.observations[name], final, worlds.rewards[name], *self._counters(),
            env.num_envs, env._limit, SUTTON_BARTO=worlds._sutton_barto, BLOCK=BLOCK, num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip

    def _pendulum(self, action: Tensor, final: Tensor) -> None:
        env, worlds, name = self._env, self._env.worlds, self._name
        pendulum_kernel[self._grid()](
            worlds.state["motion"], worlds.derived["pull"], action, worlds.observations[name], final,
            worlds.rewards[name], *self._counters(), env.num_envs, env._limit, BLOCK=BLOCK, num_warps=2,
            enable_fp_fusion=False,
        )  # fmt: skip

    def _spread(self, action: Tensor, final: Tensor) -> None:
        env, name = self._env, self._name
        worlds: Any = env.worlds
        flags = env._lanes[name]._flags
        options = worlds._options
        spread_kernel[self._grid()](
            worlds.state["position"], worlds.state["velocity"], worlds.derived["offset"], worlds.derived["distance"],
            action, worlds.observations[name], final, worlds.rewards[name], *self._counters(), *flags,
            env.num_envs, env._limit, options.local_ratio, worlds.layout.agents[0].acceleration,
            N=options.N, HAS_END=options.terminate_on_success, BLOCK=BLOCK, num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
