"""Rollouts in one launch of policies with a GRU, for environments and policies that the kernels know exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relayrl.accelerator.gpu.environments.fused_rollouts import FusedRollout, sees_numbers
from relayrl.accelerator.gpu.environments.fused_steps import known_step
from relayrl.accelerator.gpu.recurrent.fused_recurrent import HalfRecurrentUpdate
from relayrl.accelerator.gpu.recurrent.lane_gradients import OUTPUT_WIDTH
from relayrl.accelerator.gpu.recurrent.recurrent_rollout_kernel import recurrent_rollout_kernel

if TYPE_CHECKING:
    from relayrl.envs.native.batched_environment import BatchedEnvironment

UNITS_AT_A_TIME = 16
NUM_WARPS, NUM_STAGES = 4, 3


def recurrent_rollout(env: BatchedEnvironment, update: object) -> RecurrentRollout | None:
    """Rollouts by a kernel; None where the environment or the policy is not exactly what it knows. Tensors lie on a CUDA
    device, or on the host for Triton's interpreter."""
    if type(update) is not HalfRecurrentUpdate or known_step(env) is None or not sees_numbers(update.policy):
        return None
    return RecurrentRollout(env, update) if update.shapes[0].is_narrow else None


class RecurrentRollout(FusedRollout[HalfRecurrentUpdate]):
    """Fills rollouts of one environment's only group; made by `recurrent_rollout`, which knows for what."""

    def __call__(self, rollout: Any, noise: Tensor) -> None:
        """Fill all rows of a `ResidentRollout`, its last observation and its actor's memory, from `noise` [T, L, K]."""
        update, memory, shape = self._update, rollout.memory, self._update.shapes[0]
        vector, keeps = update.pi_adam.flat.vector, len(memory.before_rows) == rollout.num_steps
        held = torch.empty((2, *memory.actor.shape), device=vector.device)
        held[0] = memory.before_rows[0] = memory.actor
        width, block = shape.memory_width, 16
        self._launch(
            recurrent_rollout_kernel, block, (vector, vector.to(torch.float16)), rollout, noise, held,
            memory.before_rows, SIZES=shape.sizes, WIDTHS=shape.widths, OFFSETS=shape.offsets[:-1], IS_TANH=shape.is_tanh,
            H=shape.units, HW=width, CELL_AT=shape.offsets[-1], OUTPUTS_AT=shape.outputs_at, K=shape.num_outputs,
            W=OUTPUT_WIDTH, KEEPS=keeps, BN=min(UNITS_AT_A_TIME, width), num_warps=NUM_WARPS, num_stages=NUM_STAGES,
        )  # fmt: skip
        torch.mul(held[rollout.num_steps % 2], ~rollout.ended[-1][:, None], out=memory.actor)
