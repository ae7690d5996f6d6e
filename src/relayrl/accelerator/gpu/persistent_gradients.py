"""Gradients of small MLPs: gather, forward, loss and backward in one kernel, whose programs keep their weights' gradients.

Program `p` of `G` passes over every `G`-th block of the minibatch's rows and writes its gradient once, `[G, parameters]`;
`reduce_partials` adds those up in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.action_tiles import policy_slopes, value_slope
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.accelerator.gpu.mlp_tiles import (
    forward,
    load_features,
    load_layers,
    slope,
    tile_places,
    zero_tile,
)


@triton.jit
def zero_gradients(WIDTHS: tl.constexpr):
    """Of the layers' tiles, and of the biases of all but the first, which are columns 0 of `[width, 16]`."""
    DEPTH: tl.constexpr = len(WIDTHS) - 2
    gradients = (zero_tile(WIDTHS[1], WIDTHS[0]),)
    biases = (zero_tile(16, 16),)
    for i in tl.static_range(1, DEPTH):
        gradients = gradients + (zero_tile(WIDTHS[i + 1], WIDTHS[i]),)
        biases = biases + (zero_tile(WIDTHS[i + 1], 16),)
    return gradients + (zero_tile(WIDTHS[DEPTH], WIDTHS[DEPTH + 1]),), biases


@triton.jit
def backward(
    dy, given, weights, gradients, biases, ones, DEPTH: tl.constexpr, IS_TANH: tl.constexpr, PRECISION: tl.constexpr
):
    """Add a block's gradients; `given` is what `forward` gave."""
    last = tl.dot(tl.trans(given[DEPTH]), dy, gradients[DEPTH], input_precision=PRECISION)
    dz = tl.dot(dy, tl.trans(weights[DEPTH]), input_precision=PRECISION) * slope(given[DEPTH], IS_TANH)
    new_gradients = (last,)
    new_biases = ()
    for j in tl.static_range(1, DEPTH):
        across = tl.trans(dz)
        new_gradients = (
            tl.dot(across, given[DEPTH - j], gradients[DEPTH - j], input_precision=PRECISION),
        ) + new_gradients
        new_biases = (tl.dot(across, ones, biases[DEPTH - j], input_precision=PRECISION),) + new_biases
        dz = tl.dot(dz, weights[DEPTH - j], input_precision=PRECISION) * slope(given[DEPTH - j], IS_TANH)
    first = tl.dot(tl.trans(dz), given[0], gradients[0], input_precision=PRECISION)
    return (first,) + new_gradients, (biases[0],) + new_biases


@triton.jit
def store_gradients(OUT, gradients, biases, SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr):
    DEPTH: tl.constexpr = len(SIZES) - 2
    at, ok = tile_places(OFFSETS[0], SIZES[0], SIZES[1], WIDTHS[1], WIDTHS[0], 0)
    tl.store(OUT + at, gradients[0], mask=ok)
    for i in tl.static_range(1, DEPTH):
        at, ok = tile_places(OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1], WIDTHS[i], 1)
        tl.store(OUT + at, gradients[i], mask=ok)
        at, ok = tile_places(OFFSETS[i] + SIZES[i] * SIZES[i + 1], 1, SIZES[i + 1], WIDTHS[i + 1], 16, 1)
        tl.store(OUT + at, biases[i], mask=ok)
    at, ok = tile_places(OFFSETS[DEPTH], SIZES[DEPTH], SIZES[DEPTH + 1], WIDTHS[DEPTH], WIDTHS[DEPTH + 1], 2)
    tl.store(OUT + at, gradients[DEPTH], mask=ok)


@triton.jit
def store_last_bias(OUT, dy_sums, SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr):
    DEPTH: tl.constexpr = len(SIZES) - 2
    col = tl.arange(0, WIDTHS[DEPTH + 1])
    start: tl.constexpr = OFFSETS[DEPTH] + SIZES[DEPTH] * SIZES[DEPTH + 1]
    tl.store(OUT + start + col, dy_sums, mask=col < SIZES[DEPTH + 1])


@triton.jit
def ones_column(BLOCK: tl.constexpr):
    """[BLOCK, 16] ones in column 0: what sums over rows by the matrix units."""
    r, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, 16)[None, :]
    return tl.where((r >= 0) & (c == 0), 1.0, 0.0)


@triton.jit
def policy_program(
    p, G, P, X, ROWS, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER, OUT, num_rows, clip_ratio, entropy_coef,
    SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, HAS_MASK: tl.constexpr, IS_CLIPPED: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The policy's gradient over the blocks of program `p`; behind the parameters, the sums of loss, KL, entropy, clipped."""
    DEPTH: tl.constexpr = len(SIZES) - 2
    K: tl.constexpr = SIZES[DEPTH + 1]
    W: tl.constexpr = WIDTHS[DEPTH + 1]
    log_std_at: tl.constexpr = OFFSETS[DEPTH] + (SIZES[DEPTH] + 1) * K
    weights, biases = load_layers(P, SIZES, WIDTHS, OFFSETS)
    gradients, bias_gradients = zero_gradients(WIDTHS)
    dy_sums = tl.zeros((BLOCK, W), tl.float32)
    log_std_sums = tl.zeros((BLOCK, W), tl.float32)
    sums = (tl.zeros((BLOCK,), tl.float32),) * 4
    ones = ones_column(BLOCK)
    for step in range(STEPS):
        i = (step * G + p) * BLOCK + tl.arange(0, BLOCK)
        is_row = i < num_rows
        row = tl.load(ROWS + i, mask=is_row, other=0)
        x = load_features(X, row, is_row, SIZES[0], WIDTHS[0])
        given = forward(x, weights, biases, DEPTH, IS_TANH, PRECISION)
        dy, d_log_std, numbers = policy_slopes(
            given[DEPTH + 1], row, is_row, P, log_std_at, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER,
            clip_ratio, entropy_coef, PARTS, BEGINS, STARTS, K, W, HAS_MASK, IS_CLIPPED,
        )  # fmt: skip
        dy = tl.where(is_row[:, None], dy / num_rows, 0.0)
        dy_sums += dy
        if len(PARTS) == 0:
            log_std_sums += tl.where(is_row[:, None], d_log_std / num_rows, 0.0)
        added = ()
        for j in tl.static_range(4):
            added = added + (sums[j] + tl.where(is_row, numbers[j], 0.0),)
        sums = added
        gradients, bias_gradients = backward(
            dy, given, weights, gradients, bias_gradients, ones, DEPTH, IS_TANH, PRECISION
        )
    store_gradients(OUT, gradients, bias_gradients, SIZES, WIDTHS, OFFSETS)
    store_last_bias(OUT, tl.sum(dy_sums, 0), SIZES, WIDTHS, OFFSETS)
    end: tl.constexpr = log_std_at + (K if len(PARTS) == 0 else 0)
    if len(PARTS) == 0:
        col = tl.arange(0, W)
        tl.store(OUT + log_std_at + col, tl.sum(log_std_sums, 0), mask=col < K)
    for j in tl.static_range(4):
        tl.store(OUT + end + j, tl.sum(sums[j], 0) / num_rows)


@triton.jit
def value_program(
    p, G, P, X, ROWS, OLD_VALUE, TARGET, OUT, num_rows, clip,
    SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr, IS_CLIPPED: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The value's gradient over the blocks of program `p`; behind the parameters, the sum of the losses."""
    DEPTH: tl.constexpr = len(SIZES) - 2
    W: tl.constexpr = WIDTHS[DEPTH + 1]
    weights, biases = load_layers(P, SIZES, WIDTHS, OFFSETS)
    gradients, bias_gradients = zero_gradients(WIDTHS)
    dy_sums = tl.zeros((BLOCK, W), tl.float32)
    losses = tl.zeros((BLOCK,), tl.float32)
    ones = ones_column(BLOCK)
    first = tl.arange(0, W)[None, :] == 0
    for step in range(STEPS):
        i = (step * G + p) * BLOCK + tl.arange(0, BLOCK)
        is_row = i < num_rows
        row = tl.load(ROWS + i, mask=is_row, other=0)
        x = load_features(X, row, is_row, SIZES[0], WIDTHS[0])
        given = forward(x, weights, biases, DEPTH, IS_TANH, PRECISION)
        value = tl.sum(tl.where(first, given[DEPTH + 1], 0.0), 1)
        old_value = tl.load(OLD_VALUE + row, mask=is_row, other=0.0)
        target = tl.load(TARGET + row, mask=is_row, other=0.0)
        loss, d_value = value_slope(value, old_value, target, clip, IS_CLIPPED)
        losses += tl.where(is_row, loss, 0.0)
        dy = tl.where(first & is_row[:, None], (d_value / num_rows)[:, None], 0.0)
        dy_sums += dy
        gradients, bias_gradients = backward(
            dy, given, weights, gradients, bias_gradients, ones, DEPTH, IS_TANH, PRECISION
        )
    store_gradients(OUT, gradients, bias_gradients, SIZES, WIDTHS, OFFSETS)
    store_last_bias(OUT, tl.sum(dy_sums, 0), SIZES, WIDTHS, OFFSETS)
    end: tl.constexpr = OFFSETS[DEPTH] + (SIZES[DEPTH] + 1) * SIZES[DEPTH + 1]
    tl.store(OUT + end, tl.sum(losses, 0) / num_rows)


@Kernel
def gradients_kernel(
    P, X, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER, OUT, stride, clip_ratio, entropy_coef,
    V, VX, OLD_VALUE, TARGET, V_OUT, v_stride, clip, ROWS, num_rows, num_policy,
    SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, HAS_MASK: tl.constexpr, IS_CLIPPED: tl.constexpr,
    V_SIZES: tl.constexpr, V_WIDTHS: tl.constexpr, V_OFFSETS: tl.constexpr, IS_V_TANH: tl.constexpr,
    IS_V_CLIPPED: tl.constexpr, TRAINS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`num_policy` programs of the policy, then as many of the value. TRAINS 1: the policy's alone; 2: the value's; 3: both."""
    p = tl.program_id(0)
    if TRAINS == 1:
        policy_program(
            p, num_policy, P, X, ROWS, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER, OUT + p * stride, num_rows,
            clip_ratio, entropy_coef, SIZES, WIDTHS, OFFSETS, IS_TANH, PARTS, BEGINS, STARTS, HAS_MASK, IS_CLIPPED,
            STEPS, BLOCK, PRECISION,
        )  # fmt: skip
    elif TRAINS == 2:
        value_program(
            p, num_policy, V, VX, ROWS, OLD_VALUE, TARGET, V_OUT + p * v_stride, num_rows, clip,
            V_SIZES, V_WIDTHS, V_OFFSETS, IS_V_TANH, IS_V_CLIPPED, STEPS, BLOCK, PRECISION,
        )  # fmt: skip
    elif p < num_policy:
        policy_program(
            p, num_policy, P, X, ROWS, ACTION, MASK, LOGP, ADVANTAGE, SCALE, CENTER, OUT + p * stride, num_rows,
            clip_ratio, entropy_coef, SIZES, WIDTHS, OFFSETS, IS_TANH, PARTS, BEGINS, STARTS, HAS_MASK, IS_CLIPPED,
            STEPS, BLOCK, PRECISION,
        )  # fmt: skip
    else:
        q = p - num_policy
        value_program(
            q, num_policy, V, VX, ROWS, OLD_VALUE, TARGET, V_OUT + q * v_stride, num_rows, clip,
            V_SIZES, V_WIDTHS, V_OFFSETS, IS_V_TANH, IS_V_CLIPPED, STEPS, BLOCK, PRECISION,
        )  # fmt: skip
