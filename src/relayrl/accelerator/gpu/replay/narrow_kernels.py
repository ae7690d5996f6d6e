"""First layers of few inputs and last layers of few outputs, whose products are too thin for matrix units: one pass over what
the wide side gives, in float32, with everything that is needed of it.

Sums over rows are written in parts, a row `[stride]` for each program along the rows; `reduce_partials` adds them up in order.
They lie as in the flat vector: of a last layer the gradients of the bias below, of weight and bias; of a first one those of
weight and bias.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.mlp_tiles import slope

MAX_NARROW = 8
"""Inputs or outputs of a narrow layer."""


@triton.jit
def outputs_kernel(
    P, H, Y, num_rows, START: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Y = H Wᵀ + b, [m, K]."""
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    ok = i < num_rows
    h = tl.load(H + i[:, None] * N + n[None, :], mask=ok[:, None] & (n < N)[None, :], other=0.0)
    for k in tl.static_range(K):
        w = tl.load(P + START + k * N + n, mask=n < N, other=0.0)
        tl.store(Y + i * K + k, tl.sum(h * w[None, :], 1) + tl.load(P + START + K * N + k), mask=ok)


@triton.jit
def output_slopes_kernel(
    P, DY, H, DZ, SUMS, num_rows, START: tl.constexpr, N: tl.constexpr, K: tl.constexpr, IS_TANH: tl.constexpr,
    LEARNS: tl.constexpr, STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """DZ = (DY W) ⊙ act′(H), and sums over rows of DZ, DYᵀ H and DY."""
    p = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    weights, by_weight, by_bias = (), (), ()
    for k in tl.static_range(K):
        weights = weights + (tl.load(P + START + k * N + n, mask=n < N, other=0.0),)
        by_weight = by_weight + (tl.zeros((BM, BN), tl.float32),)
        by_bias = by_bias + (tl.zeros((BM,), tl.float32),)
    below = tl.zeros((BM, BN), tl.float32)
    for step in range(STEPS):
        i = (p.to(tl.int64) * STEPS + step) * BM + tl.arange(0, BM)
        ok = i < num_rows
        is_inside = ok[:, None] & (n < N)[None, :]
        h = tl.load(H + i[:, None] * N + n[None, :], mask=is_inside, other=0.0)
        dz = tl.zeros((BM, BN), tl.float32)
        more_weight, more_bias = (), ()
        for k in tl.static_range(K):
            dy = tl.load(DY + i * K + k, mask=ok, other=0.0)
            dz += dy[:, None] * weights[k][None, :]
            more_weight = more_weight + (by_weight[k] + dy[:, None] * h if LEARNS else by_weight[k],)
            more_bias = more_bias + (by_bias[k] + dy if LEARNS else by_bias[k],)
        by_weight, by_bias = more_weight, more_bias
        dz *= slope(h, IS_TANH)
        tl.store(DZ + i[:, None] * N + n[None, :], dz, mask=is_inside)
        if LEARNS:
            below += dz
    if LEARNS:
        own = SUMS + p * (N + K * N + K)
        tl.store(own + n, tl.sum(below, 0), mask=n < N)
        for k in tl.static_range(K):
            tl.store(own + (1 + k) * N + n, tl.sum(by_weight[k], 0), mask=n < N)
            if tl.program_id(1) == 0:
                tl.store(own + (1 + K) * N + k, tl.sum(by_bias[k], 0))


@triton.jit
def input_sums_kernel(
    DZ, H, X, SUMS, num_rows, N: tl.constexpr, F: tl.constexpr, HAS_SLOPE: tl.constexpr, IS_TANH: tl.constexpr,
    STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sums over rows of DZᵀ X and DZ, where DZ is multiplied by act′(H) first if it is not yet."""
    p = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    by_weight = ()
    for _ in tl.static_range(F):
        by_weight = by_weight + (tl.zeros((BM, BN), tl.float32),)
    by_bias = tl.zeros((BM, BN), tl.float32)
    for step in range(STEPS):
        i = (p.to(tl.int64) * STEPS + step) * BM + tl.arange(0, BM)
        ok = i < num_rows
        is_inside = ok[:, None] & (n < N)[None, :]
        dz = tl.load(DZ + i[:, None] * N + n[None, :], mask=is_inside, other=0.0)
        if HAS_SLOPE:
            dz *= slope(tl.load(H + i[:, None] * N + n[None, :], mask=is_inside, other=0.0), IS_TANH)
        more = ()
        for f in tl.static_range(F):
            more = more + (by_weight[f] + dz * tl.load(X + i * F + f, mask=ok, other=0.0)[:, None],)
        by_weight = more
        by_bias += dz
    own = SUMS + p * (F + 1) * N
    for f in tl.static_range(F):
        tl.store(own + n * F + f, tl.sum(by_weight[f], 0), mask=n < N)
    tl.store(own + F * N + n, tl.sum(by_bias, 0), mask=n < N)


@triton.jit
def input_slopes_kernel(
    P, DZ, H, DX, num_rows, N: tl.constexpr, F: tl.constexpr, HAS_SLOPE: tl.constexpr, IS_TANH: tl.constexpr,
    IS_ADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """DX = DZ W, or added to what is there, where DZ is multiplied by act′(H) first if it is not yet."""
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    ok = i < num_rows
    is_inside = ok[:, None] & (n < N)[None, :]
    dz = tl.load(DZ + i[:, None] * N + n[None, :], mask=is_inside, other=0.0)
    if HAS_SLOPE:
        dz *= slope(tl.load(H + i[:, None] * N + n[None, :], mask=is_inside, other=0.0), IS_TANH)
    for f in tl.static_range(F):
        dx = tl.sum(dz * tl.load(P + n * F + f, mask=n < N, other=0.0)[None, :], 1)
        if IS_ADDED:
            dx += tl.load(DX + i * F + f, mask=ok, other=0.0)
        tl.store(DX + i * F + f, dx, mask=ok)
