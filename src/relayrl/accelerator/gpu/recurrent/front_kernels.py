"""The layers in front of a GRU in half precision: forward in one launch where they are narrow, back in one launch each."""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.mlp_tiles import activate, load_bias, load_tile, slope

LARGEST = tl.constexpr(60_000.0)
"""Of half numbers there are none above 65,504."""


@triton.jit
def seen_kernel(X, ROWS, OUT, num_rows, F: tl.constexpr, STRIDE: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [m, STRIDE] half: the features of rows, a one behind them, zeros."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = (i < num_rows)[:, None]
    row = tl.load(ROWS + i, mask=i < num_rows, other=0)
    c = tl.arange(0, W)[None, :]
    x = tl.load(X + row[:, None] * F + c, mask=ok & (c < F), other=0.0)
    x = tl.where(c == F, 1.0, tl.minimum(tl.maximum(x, -LARGEST), LARGEST))
    tl.store(OUT + i[:, None] * STRIDE + c, x.to(tl.float16), mask=ok & (c < STRIDE))


@triton.jit
def front_kernel(
    X, ROWS, Q, BIAS, SEEN, HIDDEN, OUT, num_rows, SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr,
    STRIDE: tl.constexpr, IS_TANH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CELL_AT: tl.constexpr,
    STEPS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """SEEN as `seen_kernel` has it, HIDDEN [m, size] of one layer behind the other, and OUT [m, 3 H], the cell's projected
    inputs with BIAS [3 H]; Q are the network's parameters in half precision, which stay on chip. A program takes
    STEPS blocks of BM rows."""
    NUM_LAYERS: tl.constexpr = len(SIZES) - 1
    FAN_IN: tl.constexpr = SIZES[NUM_LAYERS]
    own, n, c = tl.arange(0, BM), tl.arange(0, W), tl.arange(0, WIDTHS[0])[None, :]
    layers = (tl.trans(load_tile(Q, OFFSETS[0], SIZES[0], SIZES[1], WIDTHS[1], WIDTHS[0], 0)),)
    for i in tl.static_range(1, NUM_LAYERS):
        layers = layers + (tl.trans(load_tile(Q, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1], WIDTHS[i], 1)),)
    k = tl.arange(0, WIDTHS[NUM_LAYERS])[:, None]
    gates = ()
    for gate in tl.static_range(3):
        w = Q + CELL_AT + (gate * H + n)[None, :] * FAN_IN + k
        gates = gates + (tl.load(w, mask=(k < FAN_IN) & (n < H)[None, :], other=0.0),)
    for step in range(STEPS):
        first = (tl.program_id(0).to(tl.int64) + step * tl.num_programs(0)) * BM
        ok = first + own < num_rows
        row = tl.load(ROWS + first + own, mask=ok, other=0)
        x = tl.load(X + row[:, None] * SIZES[0] + c, mask=ok[:, None] & (c < SIZES[0]), other=0.0)
        x = tl.where(c == SIZES[0], 1.0, tl.minimum(tl.maximum(x, -LARGEST), LARGEST)).to(tl.float16)
        tl.store(SEEN + (first + own)[:, None] * STRIDE + c, x, mask=ok[:, None] & (c < STRIDE))
        h = (x,)
        hidden = HIDDEN
        for i in tl.static_range(NUM_LAYERS):
            z = tl.dot(h[0], layers[i])
            if i > 0:
                z += load_bias(Q, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1])[None, :]
            h = (activate(z, IS_TANH).to(tl.float16),)
            unit = tl.arange(0, WIDTHS[i + 1])
            is_unit = ok[:, None] & (unit < SIZES[i + 1])[None, :]
            tl.store(hidden + first * SIZES[i + 1] + own[:, None] * SIZES[i + 1] + unit[None, :], h[0], mask=is_unit)
            hidden += num_rows.to(tl.int64) * SIZES[i + 1]
        for gate in tl.static_range(3):
            z = tl.dot(h[0], gates[gate]) + tl.load(BIAS + gate * H + n, mask=n < H, other=0.0)[None, :]
            out = OUT + first * (3 * H) + own[:, None] * (3 * H) + gate * H + n[None, :]
            tl.store(out, z.to(tl.float16), mask=ok[:, None] & (n < H)[None, :])


@triton.jit
def half_back_kernel(
    WEIGHT, DZ, HIDDEN, OUT, SUMS, num_rows, stride_dz, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr, IS_TANH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """What comes out of a layer backwards, times the slope below it: OUT = (DZ W) ⊙ act′(HIDDEN), with
    its sums SUMS [programs, FAN_IN]."""
    first, own = tl.program_id(0).to(tl.int64) * BM, tl.arange(0, BM)
    ok = first + own < num_rows
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range((FAN_OUT + BK - 1) // BK):
        k = step * BK + tl.arange(0, BK)
        dz = DZ + first * stride_dz + own[:, None] * stride_dz + k[None, :]
        dz = tl.load(dz, mask=ok[:, None] & (k < FAN_OUT)[None, :], other=0.0)
        w = WEIGHT + k[:, None] * FAN_IN + n[None, :]
        w = tl.load(w, mask=(k < FAN_OUT)[:, None] & (n < FAN_IN)[None, :], other=0.0)
        total = tl.dot(dz, w, total)
    at = own[:, None] * FAN_IN + n[None, :]
    is_unit = ok[:, None] & (n < FAN_IN)[None, :]
    total *= slope(tl.load(HIDDEN + first * FAN_IN + at, mask=is_unit, other=0.0).to(tl.float32), IS_TANH)
    tl.store(OUT + first * FAN_IN + at, total.to(tl.float16), mask=is_unit)
    tl.store(SUMS + tl.program_id(0) * FAN_IN + n, tl.sum(total, 0), mask=n < FAN_IN)


@triton.jit
def resident_back_kernel(
    WEIGHT, DZ, HIDDEN, OUT, SUMS, num_rows, stride_dz, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr, IS_TANH: tl.constexpr,
    STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same of a weight that stays on chip; a program takes STEPS blocks of BM rows."""
    own, n = tl.arange(0, BM), tl.arange(0, BN)
    CHUNKS: tl.constexpr = (FAN_OUT + BK - 1) // BK
    weights = ()
    for i in tl.static_range(CHUNKS):
        k = i * BK + tl.arange(0, BK)
        w = WEIGHT + k[:, None] * FAN_IN + n[None, :]
        weights = weights + (tl.load(w, mask=(k < FAN_OUT)[:, None] & (n < FAN_IN)[None, :], other=0.0),)
    sums = tl.zeros((BN,), tl.float32)
    for step in range(STEPS):
        first = (tl.program_id(0).to(tl.int64) + step * tl.num_programs(0)) * BM
        ok = first + own < num_rows
        at = own[:, None] * FAN_IN + n[None, :]
        is_unit = ok[:, None] & (n < FAN_IN)[None, :]
        hidden = tl.load(HIDDEN + first * FAN_IN + at, mask=is_unit, other=0.0)
        total = tl.zeros((BM, BN), tl.float32)
        for i in tl.static_range(CHUNKS):
            k = i * BK + tl.arange(0, BK)
            dz = DZ + first * stride_dz + own[:, None] * stride_dz + k[None, :]
            total = tl.dot(tl.load(dz, mask=ok[:, None] & (k < FAN_OUT)[None, :], other=0.0), weights[i], total)
        total *= slope(hidden.to(tl.float32), IS_TANH)
        tl.store(OUT + first * FAN_IN + at, total.to(tl.float16), mask=is_unit)
        sums += tl.sum(total, 0)
    tl.store(SUMS + tl.program_id(0) * FAN_IN + n, sums, mask=n < FAN_IN)
