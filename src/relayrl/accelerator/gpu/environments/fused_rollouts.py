"""Rollouts in one launch, for environments and policies that the kernels know exactly.

A `FusedRollout` fills the columns of a rollout as acting and `step_dense` would, step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.acting_kernels import MAX_FUSED_WIDTH
from relayrl.accelerator.gpu.environments.fused_steps import known_step
from relayrl.accelerator.gpu.environments.rollout_kernel import rollout_kernel
from relayrl.accelerator.gpu.fused_update import FusedUpdate, sees_plainly
from relayrl.accelerator.gpu.gradient_plans import SMALL_WEIGHTS
from relayrl.accelerator.gpu.gradient_terms import MULTIPROCESSORS
from relayrl.envs.native.classic.cart_pole import CartPoleWorlds
from relayrl.envs.native.classic.pendulum import PendulumWorlds
from relayrl.envs.native.particles.scenarios.simple_spread import SimpleSpreadWorlds

if TYPE_CHECKING:
    from relayrl.accelerator.gpu.recurrent.fused_recurrent import HalfRecurrentUpdate
    from relayrl.envs.native.batched_environment import BatchedEnvironment
    from relayrl.models.policy import ActorCritic

WORLDS: dict[type, int] = {CartPoleWorlds: 0, PendulumWorlds: 1, SimpleSpreadWorlds: 2}

Update = TypeVar("Update", bound="FusedUpdate | HalfRecurrentUpdate")


def fused_rollout(env: BatchedEnvironment, update: object) -> MLPRollout | None:
    """Rollouts by a kernel; None where the environment or the policy is not exactly what it knows, or not on a CUDA device."""
    return known_rollout(env, update) if torch.device(env.device).type == "cuda" else None


def known_rollout(env: BatchedEnvironment, update: object) -> MLPRollout | None:
    """The same wherever the tensors lie: Triton's interpreter takes those of the host."""
    if type(update) is not FusedUpdate or known_step(env) is None:
        return None
    if not sees_numbers(update.policy) or max(update._shapes[0].widths) > MAX_FUSED_WIDTH[update.precision]:
        return None
    return MLPRollout(env, update)


def sees_numbers(policy: ActorCritic) -> bool:
    """Whether a policy sees observations as they are, or normalised."""
    return sees_plainly(policy) and all(encoding.categories is None for encoding in policy.encoder.encodings)


class FusedRollout(Generic[Update]):
    """Fills rollouts of one environment's only group."""

    def __init__(self, env: BatchedEnvironment, update: Update) -> None:
        self._env, self._update = env, update
        (self._name,) = env.groups

    def _launch(
        self,
        kernel: Any,
        block: int,
        parameters: tuple[Tensor, ...],
        rollout: Any,
        noise: Tensor,
        *own: Tensor,
        **constants: Any,
    ) -> None:
        """Fill all rows of a `ResidentRollout` and its last observation from `noise` [T, L, K], a program for every `block`
        environments; `parameters` come first and `own` columns last."""
        env, update, worlds, moments = self._env, self._update, self._env.worlds, self._update.policy.normalizer
        now = env._lanes[self._name].obs
        scaling: tuple[Any, ...] = (
            (None, None, 0.0) if moments is None else (moments.shift, moments.scale, moments.clip)
        )
        columns = rollout.obs, rollout.action, rollout.logp, rollout.reward, rollout.terminated, rollout.truncated
        counters = env._elapsed_steps, env._episode, env._stream_key, worlds.terminated, env._truncated, env._over
        num_agents = env.groups[self._name].num_agents
        kernel[(triton.cdiv(env.num_envs, block),)](
            *parameters, *update._scales, *scaling, noise, now, *columns, rollout.next_obs, *self._state(), *counters,
            env.num_envs, env._limit, *self._numbers(), *own, **constants, **update._head.constants, **self._world(),
            IS_NORMALIZED=moments is not None, N=num_agents, T=rollout.num_steps, BLOCK=block,
            LANES=triton.next_power_of_2(block * num_agents), enable_fp_fusion=False,
        )  # fmt: skip
        rollout.last_obs.copy_(now.reshape(rollout.last_obs.shape))

    def _world(self) -> dict[str, Any]:
        worlds: Any = self._env.worlds
        world = WORLDS[type(worlds)]
        option = worlds._sutton_barto if world == 0 else world == 2 and worlds._options.terminate_on_success
        return {"WORLD": world, "HAS_OPTION": option}

    def _state(self) -> tuple[Any, ...]:
        worlds = self._env.worlds
        if type(worlds) is SimpleSpreadWorlds:
            own = worlds.state["position"], worlds.state["velocity"]
            return *own, worlds.derived["offset"], worlds.derived["distance"]
        return worlds.state["motion"], worlds.derived.get("pull"), None, None

    def _numbers(self) -> tuple[float, float]:
        worlds: Any = self._env.worlds
        if type(worlds) is SimpleSpreadWorlds:
            return worlds._options.local_ratio, worlds.layout.agents[0].acceleration
        return 0.0, 0.0


class MLPRollout(FusedRollout[FusedUpdate]):
    """Of a policy without a memory; made by `fused_rollout`, which knows for what."""

    def __call__(self, rollout: Any, noise: Tensor) -> None:
        """Fill all rows of a `ResidentRollout`, and its last observation, from `noise` [T, L, K]."""
        (block, warps), shape = self._block(), self._update._shapes[0]
        self._launch(
            rollout_kernel, block, (self._update.pi_adam.flat.vector,), rollout, noise, **shape.constants,
            IS_SMALL=shape.num_weights <= SMALL_WEIGHTS, PRECISION=self._update.precision.value, num_warps=warps,
        )  # fmt: skip

    def _block(self) -> tuple[int, int]:
        """Environments of a program, so that there are programs for a whole GPU where there are environments for it, and few
        enough lanes for its registers; warps."""
        is_wide, num_agents = max(self._update._shapes[0].widths) > 64, self._env.groups[self._name].num_agents
        most = 64 if is_wide else next((n for n in (64, 32) if self._env.num_envs >= n * MULTIPROCESSORS), 16)
        block = next((n for n in (64, 32) if n <= most and n * num_agents <= 64), 16)
        return block, 8 if is_wide else 4
