"""Advantages of `[T, L]` columns on which every lane acts, and their normalisation: twins of `algorithms.returns`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel

LANES = 64
MOMENT_BLOCK = 1024
MAX_MOMENTS = 1024


@Kernel
def truncated_rows_kernel(TRUNCATED, ROWS, num_lanes, T: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS [S, L]: each truncation's row, in order, behind which there are zeros."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = lane < num_lanes
    for s in tl.static_range(S):
        tl.store(ROWS + s * num_lanes + lane, lane * 0, mask=ok)
    slot = lane * 0
    for t in range(T):
        is_cut = tl.load(TRUNCATED + t * num_lanes + lane, mask=ok, other=0) != 0
        tl.store(ROWS + slot * num_lanes + lane, lane * 0 + t, mask=ok & is_cut & (slot < S))
        slot += is_cut.to(tl.int32)


@Kernel
def gae_kernel(
    REWARD, VALUE, LAST, FINAL, TERMINATED, TRUNCATED, ADVANTAGE, num_lanes, gamma, lam,
    T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """δ = r + γ (1 − terminated) V′ − V;  Â = δ + γ λ (1 − ended) Â′. V′ is FINAL [S, L] where a lane was truncated."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = lane < num_lanes
    slot = lane * 0
    for t in tl.range(0, T, loop_unroll_factor=4):
        slot += (tl.load(TRUNCATED + t * num_lanes + lane, mask=ok, other=0) != 0).to(tl.int32)
    ahead = tl.zeros((BLOCK,), tl.float32)
    following = tl.load(LAST + lane, mask=ok, other=0.0)
    for k in tl.range(0, T, loop_unroll_factor=4):
        at = (T - 1 - k) * num_lanes + lane
        reward = tl.load(REWARD + at, mask=ok, other=0.0)
        value = tl.load(VALUE + at, mask=ok, other=0.0)
        terminated = tl.load(TERMINATED + at, mask=ok, other=0) != 0
        truncated = tl.load(TRUNCATED + at, mask=ok, other=0) != 0
        slot -= truncated.to(tl.int32)
        at_end = tl.load(FINAL + slot * num_lanes + lane, mask=ok & truncated, other=0.0)
        next_value = tl.where(terminated, 0.0, tl.where(truncated, at_end, following))
        ahead = reward + gamma * next_value - value + gamma * lam * tl.where(terminated | truncated, 0.0, ahead)
        tl.store(ADVANTAGE + at, ahead, mask=ok)
        following = value


@triton.jit
def store_moments(OUT, first, total, squares, n):
    """Mean and sum of squared deviations, of sums of differences from `first`."""
    mean = tl.sum(total, 0) / tl.maximum(n, 1.0)
    tl.store(OUT, first + mean)
    tl.store(OUT + 1, tl.sum(squares, 0) - n * mean * mean)


@Kernel
def moments_kernel(ADVANTAGE, VALUE, MOMENTS, num_rows, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program's count, and mean and sum of squared deviations (Chan et al., 1979) of advantages, targets and values, of a
    stretch of rows. Differences are from the first row's, so that squares stay small."""
    p = tl.program_id(0)
    i = p * STEPS * BLOCK + tl.arange(0, BLOCK)
    start = tl.minimum(p * STEPS * BLOCK, num_rows - 1)
    first_advantage, first_value = tl.load(ADVANTAGE + start), tl.load(VALUE + start)
    zeros = tl.zeros((BLOCK,), tl.float32)
    count, total_a, squares_a, total_t, squares_t, total_v, squares_v = zeros, zeros, zeros, zeros, zeros, zeros, zeros
    for step in range(STEPS):
        at = i + step * BLOCK
        ok = at < num_rows
        a = tl.where(ok, tl.load(ADVANTAGE + at, mask=ok, other=0.0) - first_advantage, 0.0)
        v = tl.where(ok, tl.load(VALUE + at, mask=ok, other=0.0) - first_value, 0.0)
        count += tl.where(ok, 1.0, 0.0)
        total_a, squares_a = total_a + a, squares_a + a * a
        total_t, squares_t = total_t + (a + v), squares_t + (a + v) * (a + v)
        total_v, squares_v = total_v + v, squares_v + v * v
    n = tl.sum(count, 0)
    tl.store(MOMENTS + p * 7, n)
    store_moments(MOMENTS + p * 7 + 1, first_advantage, total_a, squares_a, n)
    store_moments(MOMENTS + p * 7 + 3, first_advantage + first_value, total_t, squares_t, n)
    store_moments(MOMENTS + p * 7 + 5, first_value, total_v, squares_v, n)


@triton.jit
def merged_moments(MOMENTS, AT: tl.constexpr, num_rows, num_moments, MOMENTS_BLOCK: tl.constexpr):
    """Mean and variance of all rows."""
    b = tl.arange(0, MOMENTS_BLOCK)
    ok = b < num_moments
    n = tl.load(MOMENTS + b * 7, mask=ok, other=0.0)
    means = tl.load(MOMENTS + b * 7 + AT, mask=ok, other=0.0)
    deviations = tl.load(MOMENTS + b * 7 + AT + 1, mask=ok, other=0.0)
    mean = tl.sum(n * means, 0) / num_rows
    return mean, tl.sum(deviations + n * (means - mean) * (means - mean), 0) / num_rows


@Kernel
def normalize_kernel(X, OUT, MOMENTS, SUMS, num_rows, num_moments, MOMENTS_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    """(x − mean) / (std + 1e-8); the first program adds explained variance, mean value and 1 to SUMS."""
    mean, variance = merged_moments(MOMENTS, 1, num_rows, num_moments, MOMENTS_BLOCK)
    if tl.program_id(0) == 0:
        _, spread = merged_moments(MOMENTS, 3, num_rows, num_moments, MOMENTS_BLOCK)
        mean_value, _ = merged_moments(MOMENTS, 5, num_rows, num_moments, MOMENTS_BLOCK)
        explained = tl.where(spread > 0.0, 1.0 - variance / tl.where(spread > 0.0, spread, 1.0), 0.0)
        tl.store(SUMS, tl.load(SUMS) + explained)
        tl.store(SUMS + 1, tl.load(SUMS + 1) + mean_value)
        tl.store(SUMS + 2, tl.load(SUMS + 2) + 1.0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < num_rows, other=0.0)
    tl.store(OUT + i, (x - mean) / (tl.sqrt(variance) + 1e-8), mask=i < num_rows)


def truncated_rows(truncated: Tensor, num_slots: int) -> Tensor:
    """[S, L] `DeviceUpdate.truncated_rows` of flags [T, L]."""
    num_steps, num_lanes = truncated.shape
    rows, block = torch.empty((num_slots, num_lanes), dtype=torch.int64, device=truncated.device), _lanes_of(num_lanes)
    truncated_rows_kernel[(triton.cdiv(num_lanes, block),)](
        truncated.contiguous(), rows, num_lanes, T=num_steps, S=num_slots, BLOCK=block, num_warps=block // 32
    )
    return rows


def gae(
    reward: Tensor, values: tuple[Tensor, Tensor, Tensor], flags: tuple[Tensor, Tensor], *, gamma: float, lam: float
) -> Tensor:
    """[T, L] `DeviceUpdate.advantages`."""
    (num_steps, num_lanes), block = reward.shape, _lanes_of(reward.shape[1])
    advantage = torch.empty_like(reward, memory_format=torch.contiguous_format)
    columns = [column.contiguous() for column in (reward, *values, *flags)]
    gae_kernel[(triton.cdiv(num_lanes, block),)](
        *columns, advantage, num_lanes, gamma, lam, T=num_steps, BLOCK=block, num_warps=block // 32
    )
    return advantage


def _lanes_of(num_lanes: int) -> int:
    """Lanes of a program."""
    return LANES if num_lanes > LANES else 32


def normalize(advantage: Tensor, value: Tensor, sums: Tensor) -> Tensor:
    """`DeviceUpdate.normalized`."""
    advantage, value = advantage.contiguous(), value.contiguous()
    n, out = advantage.numel(), torch.empty_like(advantage)
    steps = triton.cdiv(n, MOMENT_BLOCK * MAX_MOMENTS)
    num_moments = triton.cdiv(n, MOMENT_BLOCK * steps)
    moments = torch.empty((num_moments, 7), device=advantage.device)
    moments_kernel[(num_moments,)](advantage, value, moments, n, STEPS=steps, BLOCK=MOMENT_BLOCK)
    normalize_kernel[(triton.cdiv(n, MOMENT_BLOCK),)](
        advantage,
        out,
        moments,
        sums,
        n,
        num_moments,
        MOMENTS_BLOCK=triton.next_power_of_2(num_moments),
        BLOCK=MOMENT_BLOCK,
    )
    return out
