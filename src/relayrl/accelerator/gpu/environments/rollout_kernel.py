"""A whole rollout in one launch: every program acts in its environments and steps them, T times, into the rollout's columns.

What happens in a step is what `acting_kernels` and the environments' kernels do; a barrier orders a program's writes before its
reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.acting_kernels import outputs_of_features, store_draw
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.accelerator.gpu.environments.classic_kernels import cart_pole_step, pendulum_step
from relayrl.accelerator.gpu.environments.spread_kernel import spread_step
from relayrl.accelerator.gpu.mlp_tiles import forward, load_layers


@triton.jit
def seen_features(
    NOW, OBS, SHIFT, UNIT, lane, ok, bound, IS_NORMALIZED: tl.constexpr, F: tl.constexpr, W: tl.constexpr
):
    """[lanes, W] what the actor sees of the current observations, which are kept in the column OBS."""
    c = tl.arange(0, W)[None, :]
    is_seen = ok[:, None] & (c < F)
    at = lane[:, None] * F + c
    x = tl.load(NOW + at, mask=is_seen, other=0.0)
    tl.store(OBS + at, x, mask=is_seen)
    if IS_NORMALIZED:
        shift, unit = tl.load(SHIFT + c, mask=c < F, other=0.0), tl.load(UNIT + c, mask=c < F, other=0.0)
        x = tl.minimum(tl.maximum((x - shift) * unit, -bound), bound)
    return tl.where(c == F, 1.0, x)


@Kernel
def rollout_kernel(
    P, SCALE, CENTER, SHIFT, UNIT, bound, NOISE, NOW, OBS, ACTION, LOGP, REWARD, TERMINATED, TRUNCATED, NEXT_OBS,
    STATE, MORE_STATE, OFFSET, DISTANCE, ELAPSED, EPISODE, KEY, WORLD_TERMINATED, WORLD_TRUNCATED, OVER,
    num_envs, limit, local_ratio, acceleration,
    SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, IS_SMALL: tl.constexpr, IS_NORMALIZED: tl.constexpr,
    WORLD: tl.constexpr, HAS_OPTION: tl.constexpr, N: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """WORLD 0: CartPole (HAS_OPTION: Sutton's and Barto's reward); 1: Pendulum; 2: simple_spread of N agents (it may end).

    All agents of a program's BLOCK environments act at once, in LANES rows."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = b < num_envs
    own = tl.arange(0, LANES)
    lane = tl.program_id(0) * (BLOCK * N) + own
    is_lane = (own < BLOCK * N) & (lane < num_envs * N)
    zero = tl.program_id(0).to(tl.int64) * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    DEPTH: tl.constexpr = len(SIZES) - 2
    K: tl.constexpr = SIZES[DEPTH + 1]
    W: tl.constexpr = WIDTHS[DEPTH + 1]
    A: tl.constexpr = len(PARTS) if len(PARTS) > 0 else K
    log_std_at: tl.constexpr = OFFSETS[DEPTH] + (SIZES[DEPTH] + 1) * K
    weights, biases = load_layers(P, SIZES, WIDTHS, OFFSETS) if IS_SMALL else ((b,), (b,))
    for t in range(T):
        row = (zero + t) * num_envs * N
        x = seen_features(
            NOW, OBS + row * SIZES[0], SHIFT, UNIT, lane, is_lane, bound, IS_NORMALIZED, SIZES[0], WIDTHS[0]
        )
        if IS_SMALL:
            y = forward(x, weights, biases, DEPTH, IS_TANH, PRECISION)[DEPTH + 1]
        else:
            y = outputs_of_features(P, x, SIZES, WIDTHS, OFFSETS, IS_TANH, PRECISION)
        store_draw(
            y, lane, is_lane, P, log_std_at, None, NOISE + row * A, SCALE, CENTER, ACTION + row * A, LOGP + row,
            PARTS, BEGINS, STARTS, False, K, W,
        )  # fmt: skip
        tl.debug_barrier()
        following = NEXT_OBS + row * SIZES[0]
        if WORLD == 0:
            cart_pole_step(
                b, ok, STATE, ACTION + row, NOW, following, REWARD + row, ELAPSED, EPISODE, KEY, TERMINATED + row,
                TRUNCATED + row, OVER, num_envs, limit, HAS_OPTION,
            )  # fmt: skip
        elif WORLD == 1:
            pendulum_step(
                b, ok, STATE, MORE_STATE, ACTION + row, NOW, following, REWARD + row, ELAPSED, EPISODE, KEY,
                TERMINATED + row, TRUNCATED + row, OVER, num_envs, limit,
            )  # fmt: skip
        else:
            spread_step(
                b, ok, STATE, MORE_STATE, OFFSET, DISTANCE, ACTION + row, NOW, following, REWARD + row, ELAPSED, EPISODE,
                KEY, WORLD_TERMINATED, WORLD_TRUNCATED, OVER, TERMINATED + row, TRUNCATED + row, num_envs, limit,
                local_ratio, acceleration, N, HAS_OPTION,
            )  # fmt: skip
        tl.debug_barrier()
