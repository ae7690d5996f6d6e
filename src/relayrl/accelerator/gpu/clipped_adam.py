"""Sums of partial gradients, and Adam with clipping by the global norm: `FlatAdam.step` with all of its state on the device.

Partial sums `[G, stride]` are added up in the order of G. A step's count, rate and whether it is taken are tensors, so that
a KL limit stops an update without asking the host.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.algorithms.updates.device_adam import DeviceAdam

REDUCE_COLUMNS, REDUCE_ROWS = 64, 16
NORM_BLOCK = 2048
"""Parameters whose squares one program adds up."""
STEP_BLOCK = 512
ADAM_CONSTANTS = {
    "BETA1": BETA1,
    "BETA2": BETA2,
    "LOG_BETA1": math.log(BETA1),
    "LOG_BETA2": math.log(BETA2),
    "BLOCK": STEP_BLOCK,
}


@triton.jit
def column_sums(PARTIALS, stride, c, is_column, G, STEPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """[C] sums over G rows, in the order of rows R apart, then of those R."""
    total = tl.zeros((R, C), tl.float32)
    for step in range(STEPS):
        r = step * R + tl.arange(0, R)[:, None]
        total += tl.load(PARTIALS + r * stride + c[None, :], mask=(r < G) & is_column[None, :], other=0.0)
    return tl.sum(total, 0)


@Kernel
def reduce_kernel(
    PARTIALS, OUT, EXTRA, stride, num_parameters, num_extra, G, STEPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    """Columns' sums over G rows: parameters to OUT, what lies behind them to EXTRA."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    is_column = c < num_parameters + num_extra
    sums = column_sums(PARTIALS, stride, c, is_column, G, STEPS, R, C)
    tl.store(OUT + c, sums, mask=c < num_parameters)
    tl.store(EXTRA + c - num_parameters, sums, mask=is_column & (c >= num_parameters))


@Kernel
def squares_kernel(GRADIENT, SQUARES, COUNT, KEEP, num_parameters, BLOCK: tl.constexpr):
    """Sums of the gradient's squares, block by block; the first program counts the step."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(GRADIENT + i, mask=i < num_parameters, other=0.0)
    tl.store(SQUARES + tl.program_id(0), tl.sum(g * g, 0))
    if tl.program_id(0) == 0:
        tl.store(COUNT, tl.load(COUNT) + (tl.load(KEEP) != 0).to(tl.float64))


@triton.jit
def norm_of(SQUARES, num_blocks, BLOCKS: tl.constexpr):
    b = tl.arange(0, BLOCKS)
    return tl.sqrt(tl.sum(tl.load(SQUARES + b, mask=b < num_blocks, other=0.0), 0))


@triton.jit
def adam_block(
    p, norm, VECTOR, GRADIENT, FIRST, SECOND, COUNT, LR, num_parameters, max_norm, epsilon,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Clip, then step block p. m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  θ ← θ − α m̂ / (√v̂ + ε)."""
    steps = tl.load(COUNT)
    correction1 = (1.0 - tl.exp(steps * LOG_BETA1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(steps * LOG_BETA2)).to(tl.float32)
    i = p * BLOCK + tl.arange(0, BLOCK)
    ok = i < num_parameters
    g = tl.load(GRADIENT + i, mask=ok, other=0.0) * tl.where(norm > max_norm, max_norm / (norm + 1e-6), 1.0)
    m = tl.load(FIRST + i, mask=ok, other=0.0)
    v = tl.load(SECOND + i, mask=ok, other=0.0)
    m += (g - m) * (1.0 - BETA1)
    v = v * BETA2 + (1.0 - BETA2) * g * g
    tl.store(FIRST + i, m, mask=ok)
    tl.store(SECOND + i, v, mask=ok)
    denominator = tl.sqrt(v) / tl.sqrt(correction2) + epsilon
    at = tl.load(VECTOR + i, mask=ok, other=0.0)
    tl.store(VECTOR + i, at - tl.load(LR) / correction1 * m / denominator, mask=ok)


@Kernel
def adam_kernel(
    VECTOR, GRADIENT, FIRST, SECOND, SQUARES, COUNT, LR, KEEP, NORM, num_parameters, num_blocks, max_norm, epsilon,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Step, where KEEP is not 0."""
    norm = norm_of(SQUARES, num_blocks, BLOCKS)
    if tl.program_id(0) == 0:
        tl.store(NORM, norm)
    if tl.load(KEEP) != 0:
        adam_block(
            tl.program_id(0), norm, VECTOR, GRADIENT, FIRST, SECOND, COUNT, LR, num_parameters, max_norm, epsilon,
            BETA1, BETA2, LOG_BETA1, LOG_BETA2, BLOCK,
        )  # fmt: skip


def reduce_partials(partials: Tensor, gradient: Tensor, extra: Tensor) -> None:
    """Add up `partials` [G, …], each a gradient and, behind it, other numbers."""
    total = gradient.numel() + extra.numel()
    num_rows = partials.shape[0]
    rows = next((n for n in (128, 64) if num_rows > 2 * n), REDUCE_ROWS)  # of many, more at a time
    reduce_kernel[(triton.cdiv(total, REDUCE_COLUMNS),)](
        partials, gradient, extra, partials.stride(0), gradient.numel(), extra.numel(), num_rows,
        STEPS=triton.cdiv(num_rows, rows), R=rows, C=REDUCE_COLUMNS,
    )  # fmt: skip


class FusedAdam(DeviceAdam):
    """`DeviceAdam`, whose step is two launches."""

    def __init__(self, flat: FlatAdam) -> None:
        super().__init__(flat)
        self._num_blocks = triton.cdiv(flat.vector.numel(), NORM_BLOCK)
        self._squares = torch.zeros(self._num_blocks, device=flat.vector.device)

    def step(self, keep: Tensor) -> Tensor:
        o, n = self.flat, self.flat.vector.numel()
        norm = torch.empty(1, device=o.vector.device)
        squares_kernel[(self._num_blocks,)](o.gradient, self._squares, self.num_steps, keep, n, BLOCK=NORM_BLOCK)
        adam_kernel[(triton.cdiv(n, STEP_BLOCK),)](
            o.vector, o.gradient, o.first_moment, o.second_moment, self._squares, self.num_steps, self.lr, keep, norm,
            n, self._num_blocks, o.max_norm, o.epsilon, BLOCKS=triton.next_power_of_2(self._num_blocks), **ADAM_CONSTANTS
        )  # fmt: skip
        return norm
