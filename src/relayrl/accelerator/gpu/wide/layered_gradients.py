"""Gradients of wide MLPs, layer by layer: matrix products with what belongs to them (gather, bias, activation, loss) fused in.

Activations `[m, width]` and their gradients go through device memory. A weight's gradient is a sum over rows, which S programs
share for every tile; `reduce_partials` adds up their parts in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.action_tiles import policy_slopes, value_slope
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.accelerator.gpu.mlp_tiles import activate, slope


@triton.jit
def rows_of(ROWS, start, num_rows, IS_GATHERED: tl.constexpr, BLOCK: tl.constexpr):
    """Indices in the batch, or in the block itself where its rows follow each other; and which there are."""
    i = start + tl.arange(0, BLOCK)
    ok = i < num_rows
    row = tl.load(ROWS + i, mask=ok, other=0) if IS_GATHERED else tl.arange(0, BLOCK)
    return row, ok


@Kernel
def layer_kernel(
    P, X, ROWS, H, num_rows, START: tl.constexpr, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr, IS_GATHERED: tl.constexpr,
    IS_TANH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """H = act(X Wᵀ + b) of one tile."""
    row, ok = rows_of(ROWS, tl.program_id(0) * BM, num_rows, IS_GATHERED, BM)
    first = tl.program_id(0).to(tl.int64) * BM
    x_at = X if IS_GATHERED else X + first * FAN_IN
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    z = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(FAN_IN, BK)):
        k = step * BK + tl.arange(0, BK)
        x = tl.load(x_at + row[:, None] * FAN_IN + k[None, :], mask=ok[:, None] & (k < FAN_IN)[None, :], other=0.0)
        w = tl.load(
            P + START + n[None, :] * FAN_IN + k[:, None], mask=(n < FAN_OUT)[None, :] & (k < FAN_IN)[:, None], other=0.0
        )
        z = tl.dot(x, w, z, input_precision=PRECISION)
    z += tl.load(P + START + FAN_OUT * FAN_IN + n, mask=n < FAN_OUT, other=0.0)[None, :]
    at = tl.arange(0, BM)[:, None] * FAN_OUT + n[None, :]
    tl.store(H + first * FAN_OUT + at, activate(z, IS_TANH), mask=ok[:, None] & (n < FAN_OUT)[None, :])


@triton.jit
def outputs_of(
    P, H, p, num_rows, START: tl.constexpr, FAN_IN: tl.constexpr, K: tl.constexpr, W: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """[BM, W] the last layer, of block p."""
    n, own = tl.arange(0, W), tl.arange(0, BM)
    first = p.to(tl.int64) * BM
    is_row = first + own < num_rows
    y = tl.zeros((BM, W), tl.float32)
    for step in range(tl.cdiv(FAN_IN, BK)):
        k = step * BK + tl.arange(0, BK)
        is_inside = is_row[:, None] & (k < FAN_IN)[None, :]
        h = tl.load(H + first * FAN_IN + own[:, None] * FAN_IN + k[None, :], mask=is_inside, other=0.0).to(tl.float32)
        w = tl.load(
            P + START + n[None, :] * FAN_IN + k[:, None], mask=(n < K)[None, :] & (k < FAN_IN)[:, None], other=0.0
        )
        y = tl.dot(h, w, y, input_precision=PRECISION)
    return y + tl.load(P + START + K * FAN_IN + n, mask=n < K, other=0.0)[None, :]


@Kernel
def policy_loss_kernel(
    P, H, ROWS, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER, DY, SUMS, num_rows, clip_ratio, entropy_coef,
    START: tl.constexpr, FAN_IN: tl.constexpr, K: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr,
    BEGINS: tl.constexpr, STARTS: tl.constexpr, HAS_MASK: tl.constexpr, IS_CLIPPED: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """DY [m, W] of a block's rows; its sums of the gradients of bias and log deviations, loss, KL, entropy and clipped rows."""
    p = tl.program_id(0)
    i = p * BM + tl.arange(0, BM)
    row, ok = rows_of(ROWS, p * BM, num_rows, True, BM)
    y = outputs_of(P, H, p, num_rows, START, FAN_IN, K, W, BM, BK, PRECISION)
    dy, d_log_std, numbers = policy_slopes(
        y, row, ok, P, START + (FAN_IN + 1) * K, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER,
        clip_ratio, entropy_coef, PARTS, BEGINS, STARTS, K, W, HAS_MASK, IS_CLIPPED,
    )  # fmt: skip
    col = tl.arange(0, W)
    dy = tl.where(ok[:, None], dy / num_rows, 0.0)
    tl.store(DY + i.to(tl.int64)[:, None] * W + col[None, :], dy, mask=ok[:, None])
    NUM_BEFORE: tl.constexpr = 2 * K if len(PARTS) == 0 else K
    own = SUMS + p * (NUM_BEFORE + 4)
    tl.store(own + col, tl.sum(dy, 0), mask=col < K)
    if len(PARTS) == 0:
        tl.store(own + K + col, tl.sum(tl.where(ok[:, None], d_log_std / num_rows, 0.0), 0), mask=col < K)
    for j in tl.static_range(4):
        tl.store(own + NUM_BEFORE + j, tl.sum(tl.where(ok, numbers[j], 0.0), 0) / num_rows)


@Kernel
def value_loss_kernel(
    P, H, ROWS, OLD_VALUE, TARGET, DY, SUMS, num_rows, clip, START: tl.constexpr, FAN_IN: tl.constexpr, K: tl.constexpr,
    W: tl.constexpr, IS_CLIPPED: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """DY [m, W] of a block's rows, and the sums of their bias's gradient and losses."""
    p = tl.program_id(0)
    i = p * BM + tl.arange(0, BM)
    row, ok = rows_of(ROWS, p * BM, num_rows, True, BM)
    y = outputs_of(P, H, p, num_rows, START, FAN_IN, K, W, BM, BK, PRECISION)
    col = tl.arange(0, W)[None, :]
    value = tl.sum(tl.where(col == 0, y, 0.0), 1)
    old_value = tl.load(OLD_VALUE + row, mask=ok, other=0.0)
    target = tl.load(TARGET + row, mask=ok, other=0.0)
    loss, d_value = value_slope(value, old_value, target, clip, IS_CLIPPED)
    d_value = tl.where(ok, d_value / num_rows, 0.0)
    tl.store(DY + i.to(tl.int64)[:, None] * W + col, tl.where(col == 0, d_value[:, None], 0.0), mask=ok[:, None])
    tl.store(SUMS + 2 * p, tl.sum(d_value, 0))
    tl.store(SUMS + 2 * p + 1, tl.sum(tl.where(ok, loss, 0.0), 0) / num_rows)


@Kernel
def slope_kernel(
    DZ,
    H,
    SUMS,
    num_rows,
    WIDTH: tl.constexpr,
    IS_TANH: tl.constexpr,
    STEPS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """DZ ← DZ ⊙ act′(H), and its sums over each program's rows, SUMS [programs, WIDTH]: parts of the bias's gradient."""
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(STEPS):
        i = (tl.program_id(0).to(tl.int64) * STEPS + step) * BM + tl.arange(0, BM)
        ok = (i < num_rows)[:, None] & (n < WIDTH)[None, :]
        at = i[:, None] * WIDTH + n[None, :]
        h = tl.load(H + at, mask=ok, other=0.0).to(tl.float32)
        dz = tl.load(DZ + at, mask=ok, other=0.0).to(tl.float32) * slope(h, IS_TANH)
        tl.store(DZ + at, dz, mask=ok)
        total += dz
    tl.store(SUMS + tl.program_id(0) * WIDTH + n, tl.sum(total, 0), mask=n < WIDTH)


@Kernel
def back_kernel(
    P, DZ, H, OUT, num_rows, stride_dz, START: tl.constexpr, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr,
    IS_TANH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What comes out of a layer backwards, times the slope below it: OUT = (DZ W) ⊙ act′(H)."""
    first, i = tl.program_id(0).to(tl.int64) * BM, tl.arange(0, BM)
    ok = first + i < num_rows
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    is_in = n < FAN_IN
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(FAN_OUT, BK)):
        k = step * BK + tl.arange(0, BK)
        is_out = k < FAN_OUT
        dz = tl.load(
            DZ + first * stride_dz + i[:, None] * stride_dz + k[None, :], mask=ok[:, None] & is_out[None, :], other=0.0
        )
        w = tl.load(P + START + k[:, None] * FAN_IN + n[None, :], mask=is_out[:, None] & is_in[None, :], other=0.0)
        total = tl.dot(dz, w, total, input_precision=PRECISION)
    at = i[:, None] * FAN_IN + n[None, :]
    is_tile = ok[:, None] & is_in[None, :]
    h = tl.load(H + first * FAN_IN + at, mask=is_tile, other=0.0)
    tl.store(OUT + first * FAN_IN + at, total * slope(h, IS_TANH), mask=is_tile)


@Kernel
def weight_kernel(
    DZ, X, ROWS, PARTIALS, num_rows, stride_dz, stride, START: tl.constexpr, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr,
    IS_GATHERED: tl.constexpr, STEPS: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """DZᵀ X over a share of the rows, for one tile of the weight, and the bias beside its first tiles."""
    tile, s = tl.program_id(0), tl.program_id(1)
    TILES_IN: tl.constexpr = (FAN_IN + BI - 1) // BI
    o = tile // TILES_IN * BO + tl.arange(0, BO)
    c = tile % TILES_IN * BI + tl.arange(0, BI)
    total = tl.zeros((BO, BI), tl.float32)
    bias = tl.zeros((BO,), tl.float32)
    for step in range(STEPS):
        start = (s * STEPS + step) * BR
        first, i = start.to(tl.int64), tl.arange(0, BR)
        row, ok = rows_of(ROWS, start, num_rows, IS_GATHERED, BR)
        dz = tl.load(
            DZ + first * stride_dz + i[:, None] * stride_dz + o[None, :],
            mask=ok[:, None] & (o < FAN_OUT)[None, :],
            other=0.0,
        )
        x_at = X if IS_GATHERED else X + first * FAN_IN
        x = tl.load(x_at + row[:, None] * FAN_IN + c[None, :], mask=ok[:, None] & (c < FAN_IN)[None, :], other=0.0)
        total = tl.dot(tl.trans(dz), x, total, input_precision=PRECISION)
        if tile % TILES_IN == 0:
            bias += tl.sum(dz, 0)
    own = PARTIALS + s * stride + START
    tl.store(own + o[:, None] * FAN_IN + c[None, :], total, mask=(o < FAN_OUT)[:, None] & (c < FAN_IN)[None, :])
    if tile % TILES_IN == 0:
        tl.store(own + FAN_OUT * FAN_IN + o, bias, mask=o < FAN_OUT)
