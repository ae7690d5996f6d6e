"""MLPs of a narrow first layer, two hidden layers and few outputs: values in one launch, and the gradient by the inputs in one.

A program holds a block of rows with all columns of a hidden layer. The first layer's outputs are computed from the inputs where
the product takes them, and once more on the way back.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.mlp_tiles import activate, slope


@triton.jit
def columns_of(X, i, ok, F: tl.constexpr):
    """The columns of X [m, F], each [rows]."""
    columns = ()
    for f in tl.static_range(F):
        columns = columns + (tl.load(X + i * F + f, mask=ok, other=0.0),)
    return columns


@triton.jit
def first_outputs(P, xs, n, F: tl.constexpr, N1: tl.constexpr, IS_TANH: tl.constexpr):
    """H₁ of the columns n."""
    z = tl.load(P + F * N1 + n, mask=n < N1, other=0.0)[None, :]
    for f in tl.static_range(F):
        z = z + xs[f][:, None] * tl.load(P + n * F + f, mask=n < N1, other=0.0)[None, :]
    return activate(z, IS_TANH)


@triton.jit
def forward_kernel(
    P, X, H1, H2, Y, num_rows, F: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K: tl.constexpr,
    IS_TANH: tl.constexpr, KEEPS_H1: tl.constexpr, KEEPS_H2: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y [m, K], and what the way back needs of the hidden layers."""
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    ok = i < num_rows
    n = tl.arange(0, BN)
    is_n = n < N2
    SECOND: tl.constexpr = (F + 1) * N1
    THIRD: tl.constexpr = SECOND + (N1 + 1) * N2
    xs = columns_of(X, i, ok, F)
    z = tl.zeros((BM, BN), tl.float32)
    for step in range((N1 + BK - 1) // BK):
        k = step * BK + tl.arange(0, BK)
        is_k = k < N1
        h = first_outputs(P, xs, k, F, N1, IS_TANH)
        if KEEPS_H1:
            tl.store(H1 + i[:, None] * N1 + k[None, :], h, mask=ok[:, None] & is_k[None, :])
        w = tl.load(P + SECOND + n[None, :] * N1 + k[:, None], mask=is_n[None, :] & is_k[:, None], other=0.0)
        z = tl.dot(h, w, z, input_precision=PRECISION)
    h = activate(z + tl.load(P + SECOND + N1 * N2 + n, mask=is_n, other=0.0)[None, :], IS_TANH)
    if KEEPS_H2:
        tl.store(H2 + i[:, None] * N2 + n[None, :], h, mask=ok[:, None] & is_n[None, :])
    for j in tl.static_range(K):
        w = tl.load(P + THIRD + j * N2 + n, mask=is_n, other=0.0)
        tl.store(Y + i * K + j, tl.sum(h * w[None, :], 1) + tl.load(P + THIRD + K * N2 + j), mask=ok)


@triton.jit
def input_gradient_kernel(
    P, W2T, X, H2, DY, DX, num_rows, F: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K: tl.constexpr,
    IS_TANH: tl.constexpr, IS_ADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """DX [m, F], or added to what is there. W2T [N1, N2] is W₂ transposed: as the matrix units take it in tf32."""
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    ok = i < num_rows
    n = tl.arange(0, BN)
    is_n = n < N1
    THIRD: tl.constexpr = (F + 1) * N1 + (N1 + 1) * N2
    xs, dys = columns_of(X, i, ok, F), columns_of(DY, i, ok, K)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range((N2 + BK - 1) // BK):
        k = step * BK + tl.arange(0, BK)
        is_k = k < N2
        h = tl.load(H2 + i[:, None] * N2 + k[None, :], mask=ok[:, None] & is_k[None, :], other=0.0)
        dz = tl.zeros((BM, BK), tl.float32)
        for j in tl.static_range(K):
            dz += dys[j][:, None] * tl.load(P + THIRD + j * N2 + k, mask=is_k, other=0.0)[None, :]
        dz *= slope(h, IS_TANH)
        w = tl.load(W2T + n[None, :] * N2 + k[:, None], mask=is_n[None, :] & is_k[:, None], other=0.0)
        total = tl.dot(dz, w, total, input_precision=PRECISION)
    total *= slope(first_outputs(P, xs, n, F, N1, IS_TANH), IS_TANH)
    for f in tl.static_range(F):
        dx = tl.sum(total * tl.load(P + n * F + f, mask=is_n, other=0.0)[None, :], 1)
        if IS_ADDED:
            dx += tl.load(DX + i * F + f, mask=ok, other=0.0)
        tl.store(DX + i * F + f, dx, mask=ok)
