"""A convolution without padding and what follows it, relu: forward, and the gradients by its input, weight and bias.

Images lie in memory with their channels last. A row of a product is a place (m, y, x) of the output, its numbers are those of
the patch that it sees, in the order (ky, kx, c): the numbers of one ky are neighbours in memory. Weights are `[F, KH KW C]`.

What is multiplied is rounded to half precision, which has the 10 bits of mantissa of tf32; sums are float32. Bytes are exact in
it. Gradients, which have a wider range, are kept as half precision times a power of two that brings a bound of the largest of
them below 2¹⁵: what is 2⁻²⁰ of it still has all its bits. Sums have a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST_HALF = tl.constexpr(65_504.0)


@triton.jit
def patch_starts(
    row, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, S: tl.constexpr, OY: tl.constexpr, OX: tl.constexpr
):
    """Where the patches of output places begin in the images."""
    image = row // (OY * OX)
    place = row % (OY * OX)
    return image.to(tl.int64) * (H * W * C) + ((place // OX) * (S * W * C) + (place % OX) * (S * C))


@triton.jit
def within_patch(k, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr):
    """Where the patches' numbers `k` are from there."""
    return (k // (KW * C)) * (W * C) + k % (KW * C)


@triton.jit
def forward_kernel(
    X, WEIGHT, BIAS, OUT, num_rows, scale, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, S: tl.constexpr, OY: tl.constexpr, OX: tl.constexpr, F: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """OUT [M OY OX, F] = relu(scale · patches · WEIGHTᵀ + BIAS), as float32 or half precision, at most its largest number."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    is_row, is_n = row < num_rows, n < F
    start = patch_starts(row, H, W, C, S, OY, OX)
    total = tl.zeros((BM, BN), tl.float32)
    K: tl.constexpr = KH * KW * C
    for chunk in range(0, K, BK):
        k = chunk + tl.arange(0, BK)
        is_k = k < K
        x = tl.load(
            X + start[:, None] + within_patch(k, W, C, KW)[None, :], mask=is_row[:, None] & is_k[None, :], other=0
        )
        w = tl.load(WEIGHT + n[None, :] * K + k[:, None], mask=is_n[None, :] & is_k[:, None], other=0)
        total = tl.dot(x.to(tl.float16), w, total)
    total = tl.maximum(total * scale + tl.load(BIAS + n, mask=is_n, other=0.0)[None, :], 0.0)
    if OUT.dtype.element_ty == tl.float16:
        total = tl.minimum(total, LARGEST_HALF)
    tl.store(
        OUT + row[:, None].to(tl.int64) * F + n[None, :],
        total.to(OUT.dtype.element_ty),
        mask=is_row[:, None] & is_n[None, :],
    )


@triton.jit
def largest_kernel(GIVEN, MAXIMA, num_numbers, BLOCK: tl.constexpr):
    """MAXIMA [P]: the largest absolute numbers of blocks."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(MAXIMA + tl.program_id(0), tl.max(tl.abs(tl.load(GIVEN + i, mask=i < num_numbers, other=0.0)), 0))


@triton.jit
def scale_kernel(
    MAXIMA, num_maxima, WEIGHT, SCALE, F: tl.constexpr, K: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """SCALE [2]: a power of two, and its inverse, times which what is no larger than the largest of MAXIMA [P], passed back
    through WEIGHT [F, K] (where K is not 0), stays below 2¹⁵."""
    largest = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        i = step * BLOCK + tl.arange(0, BLOCK)
        found = tl.load(MAXIMA + i, mask=i < num_maxima, other=0.0)
        largest = tl.where(found <= largest, largest, found)
    bound = tl.max(largest, 0)
    if K > 0:  # a number of the input gets at most the sum of its channel's weights
        sums = tl.zeros((ROWS, BC), tl.float32)
        c = tl.arange(0, BC)
        for first in range(0, F * K // C, ROWS):
            r = first + tl.arange(0, ROWS)
            ok = (r < F * K // C)[:, None] & (c < C)[None, :]
            sums += tl.abs(tl.load(WEIGHT + r[:, None] * C + c[None, :], mask=ok, other=0).to(tl.float32))
        bound *= tl.max(tl.sum(sums, 0), 0) * 1.001
    exponent = (bound.to(tl.int32, bitcast=True) >> 23) & 255
    # A float32 is 2^(exponent − 127) · [1, 2); both powers must be normal numbers.
    power = tl.minimum(tl.maximum(14 + 127 - exponent, -126), 126)
    power = tl.where(exponent == 0, 0, power)
    tl.store(SCALE, ((power + 127) << 23).to(tl.float32, bitcast=True))
    tl.store(SCALE + 1, ((127 - power) << 23).to(tl.float32, bitcast=True))


@triton.jit
def slope_kernel(GIVEN, OUT, SCALE, D, num_numbers, BLOCK: tl.constexpr):
    """D: SCALE times the gradient by what relu was taken of, where GIVEN is that by its output OUT."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < num_numbers
    d = tl.load(GIVEN + i, mask=ok, other=0.0) * tl.load(SCALE)
    tl.store(D + i, tl.where(tl.load(OUT + i, mask=ok, other=0.0) > 0, d, 0.0).to(tl.float16), mask=ok)


@triton.jit
def weight_kernel(
    X, D, SCALE, PARTS, num_rows, x_scale, STEPS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, S: tl.constexpr, OY: tl.constexpr, OX: tl.constexpr, F: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """PARTS [P, F K + F]: each program's share of the gradient by weight and bias, of D, which is SCALE times too large."""
    K: tl.constexpr = KH * KW * C
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    is_k, is_n = k < K, n < F
    within = within_patch(k, W, C, KW)
    total = tl.zeros((BK, BN), tl.float32)
    bias = tl.zeros((BR, BN), tl.float32)
    first = tl.program_id(1) * STEPS * BR
    for step in range(STEPS):
        row = first + step * BR + tl.arange(0, BR)
        is_row = row < num_rows
        start = patch_starts(row, H, W, C, S, OY, OX)
        x = tl.load(X + start[:, None] + within[None, :], mask=is_row[:, None] & is_k[None, :], other=0)
        d = tl.load(D + row[:, None].to(tl.int64) * F + n[None, :], mask=is_row[:, None] & is_n[None, :], other=0.0)
        bias += d.to(tl.float32)
        total = tl.dot(tl.trans(x.to(tl.float16)), d, total)
    parts = PARTS + tl.program_id(1).to(tl.int64) * (F * K + F)
    down = tl.load(SCALE + 1)
    tl.store(parts + n[None, :] * K + k[:, None], total * down * x_scale, mask=is_n[None, :] & is_k[:, None])
    tl.store(parts + F * K + n, tl.sum(bias, 0) * down, mask=is_n & (tl.program_id(0) == 0))


@triton.jit
def input_kernel(
    D, WEIGHT, X, SCALE, OUT_SCALE, OUT, MAXIMA, num_rows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, S: tl.constexpr, OY: tl.constexpr, OX: tl.constexpr, F: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """OUT [M H W, C]: OUT_SCALE times the gradient by the layer's input before its own relu, of which X is the output, of D,
    which is SCALE times too large; and MAXIMA [P] of it without a scale.

    A row is a square of S × S places of the input: all of its places are seen by the same TY × TX places of the output.
    """
    HS: tl.constexpr = (H + S - 1) // S
    WS: tl.constexpr = (W + S - 1) // S
    TX: tl.constexpr = (KW + S - 1) // S
    TAPS: tl.constexpr = (KH + S - 1) // S * TX
    CHUNKS: tl.constexpr = (F + BK - 1) // BK
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    image, place = row // (HS * WS), row % (HS * WS)
    qy, qx = place // WS, place % WS
    py, px, c = n // (S * C), n // C % S, n % C
    is_row, is_n = row < num_rows, n < S * S * C
    begin = image.to(tl.int64) * (OY * OX * F)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(TAPS * CHUNKS):
        ty, tx = step // CHUNKS // TX, step // CHUNKS % TX
        f = step % CHUNKS * BK + tl.arange(0, BK)
        oy, ox = qy - ty, qx - tx
        sees = is_row & (oy >= 0) & (oy < OY) & (ox >= 0) & (ox < OX)
        d = tl.load(
            D + (begin + (oy * OX + ox) * F)[:, None] + f[None, :], mask=sees[:, None] & (f < F)[None, :], other=0.0
        )
        ky, kx = py + ty * S, px + tx * S
        is_seen = is_n & (ky < KH) & (kx < KW)
        w = WEIGHT + f[:, None] * (KH * KW * C) + ((ky * KW + kx) * C + c)[None, :]
        total = tl.dot(d, tl.load(w, mask=(f < F)[:, None] & is_seen[None, :], other=0), total)
    y, x = qy[:, None] * S + py[None, :], qx[:, None] * S + px[None, :]
    where = (image.to(tl.int64) * (H * W * C))[:, None] + (y * W + x) * C + c[None, :]
    ok = is_row[:, None] & is_n[None, :] & (y < H) & (x < W)
    total = tl.where(tl.load(X + where, mask=ok, other=0) > 0, total * tl.load(SCALE + 1), 0.0)
    tl.store(OUT + where, (total * tl.load(OUT_SCALE)).to(tl.float16), mask=ok)
    largest = tl.max(tl.max(tl.abs(tl.where(ok, total, 0.0)), 1), 0)
    tl.store(MAXIMA + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), largest)
