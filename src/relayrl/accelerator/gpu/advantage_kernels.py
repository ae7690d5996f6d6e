"""Advantages of `[T, L]` columns on which every lane acts, and their normalisation: twins of `algorithms.returns`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 64
MOMENT_BLOCK = 1024
MAX_MOMENTS = 1024


@triton.jit
def gae_kernel(
    REWARD, VALUE, NEXT_VALUE, TERMINATED, TRUNCATED, ADVANTAGE, TARGET, num_lanes, gamma, lam,
    T: tl.constexpr, BLOCK: tl.constexpr, HAS_TARGET: tl.constexpr,
):  # fmt: skip
    """δ = r + γ (1 − terminated) V′ − V;  Â = δ + γ λ (1 − ended) Â′."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = lane < num_lanes
    ahead = tl.zeros((BLOCK,), tl.float32)
    for k in tl.range(0, T, loop_unroll_factor=4):
        at = (T - 1 - k) * num_lanes + lane
        reward = tl.load(REWARD + at, mask=ok, other=0.0)
        value = tl.load(VALUE + at, mask=ok, other=0.0)
        next_value = tl.load(NEXT_VALUE + at, mask=ok, other=0.0)
        terminated = tl.load(TERMINATED + at, mask=ok, other=0) != 0
        ended = terminated | (tl.load(TRUNCATED + at, mask=ok, other=0) != 0)
        ahead = (
            reward + gamma * tl.where(terminated, 0.0, next_value) - value + gamma * lam * tl.where(ended, 0.0, ahead)
        )
        tl.store(ADVANTAGE + at, ahead, mask=ok)
        if HAS_TARGET:
            tl.store(TARGET + at, ahead + value, mask=ok)


@triton.jit
def moments_kernel(X, MOMENTS, num_rows, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program's count, mean and sum of squared deviations (Chan et al., 1979) of a stretch of rows."""
    p = tl.program_id(0)
    i = p * STEPS * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(X + tl.minimum(p * STEPS * BLOCK, num_rows - 1))
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        at = i + step * BLOCK
        ok = at < num_rows
        x = tl.where(ok, tl.load(X + at, mask=ok, other=0.0) - first, 0.0)  # from the first, so that squares stay small
        total += x
        squares += x * x
        count += tl.where(ok, 1.0, 0.0)
    n = tl.sum(count, 0)
    mean = tl.sum(total, 0) / tl.maximum(n, 1.0)
    tl.store(MOMENTS + p * 3, n)
    tl.store(MOMENTS + p * 3 + 1, first + mean)
    tl.store(MOMENTS + p * 3 + 2, tl.sum(squares, 0) - n * mean * mean)


@triton.jit
def normalize_kernel(X, OUT, MOMENTS, num_rows, num_moments, MOMENTS_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    """(x − mean) / (std + 1e-8), of the moments of all programs."""
    b = tl.arange(0, MOMENTS_BLOCK)
    ok = b < num_moments
    n = tl.load(MOMENTS + b * 3, mask=ok, other=0.0)
    means = tl.load(MOMENTS + b * 3 + 1, mask=ok, other=0.0)
    deviations = tl.load(MOMENTS + b * 3 + 2, mask=ok, other=0.0)
    mean = tl.sum(n * means, 0) / num_rows
    spread = tl.sum(deviations + n * (means - mean) * (means - mean), 0) / num_rows
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < num_rows, other=0.0)
    tl.store(OUT + i, (x - mean) / (tl.sqrt(spread) + 1e-8), mask=i < num_rows)


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    advantage: Tensor,
    target: Tensor | None = None,
    *,
    gamma: float,
    lam: float,
) -> None:
    """Write `returns.gae` of contiguous `[T, L]` columns to `advantage`, and advantage + value to `target`."""
    num_steps, num_lanes = reward.shape
    block = LANES if num_lanes > LANES else 32
    gae_kernel[(triton.cdiv(num_lanes, block),)](
        reward, value, next_value, terminated, truncated, advantage, target, num_lanes, gamma, lam,
        T=num_steps, BLOCK=block, HAS_TARGET=target is not None, num_warps=block // 32,
    )  # fmt: skip


def fused_gae(
    reward: Tensor, value: Tensor, next_value: Tensor, flags: tuple[Tensor, Tensor], *, gamma: float, lam: float
) -> Tensor:
    """[T, L] `returns.gae`, where every lane acts on every row; `flags` are `terminated` and `truncated`."""
    advantage = torch.empty_like(value, memory_format=torch.contiguous_format)
    numbers = reward.contiguous(), value.contiguous(), next_value.contiguous()
    gae(*numbers, flags[0].contiguous(), flags[1].contiguous(), advantage, gamma=gamma, lam=lam)
    return advantage


def normalize(x: Tensor, out: Tensor) -> None:
    """Write `returns.normalized` of contiguous `x`."""
    n = x.numel()
    steps = triton.cdiv(n, MOMENT_BLOCK * MAX_MOMENTS)
    num_moments = triton.cdiv(n, MOMENT_BLOCK * steps)
    moments = torch.empty((num_moments, 3), device=x.device)
    moments_kernel[(num_moments,)](x, moments, n, STEPS=steps, BLOCK=MOMENT_BLOCK)
    normalize_kernel[(triton.cdiv(n, MOMENT_BLOCK),)](
        x, out, moments, n, num_moments, MOMENTS_BLOCK=triton.next_power_of_2(num_moments), BLOCK=MOMENT_BLOCK
    )
