"""A whole rollout of a policy with a GRU in one launch: `rollout_kernel` with a memory, and weights in half precision.

Lanes remember in device memory, `MEMORY` [2, L, H], of which steps read one half and write the other: a program goes through
its units BN at a time, and every gate sees all of what is remembered. Of an episode that is over the next step forgets all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.acting_kernels import store_draw
from relayrl.accelerator.gpu.environments.classic_kernels import cart_pole_step, pendulum_step
from relayrl.accelerator.gpu.environments.rollout_kernel import seen_features
from relayrl.accelerator.gpu.environments.spread_kernel import spread_step
from relayrl.accelerator.gpu.mlp_tiles import activate, load_bias, load_tile
from relayrl.accelerator.gpu.recurrent.cell_kernels import sigmoid
from relayrl.accelerator.gpu.recurrent.front_kernels import LARGEST


@triton.jit
def transposed_rows(Q, n, FAN_IN: tl.constexpr, W: tl.constexpr, FAN_OUT: tl.constexpr, first):
    """[W, BN] the rows `first` + n of a weight [·, FAN_IN], of FAN_OUT rows."""
    k = tl.arange(0, W)[:, None]
    is_inside = (k < FAN_IN) & (n < FAN_OUT)[None, :]
    return tl.load(Q + (first + n)[None, :] * FAN_IN + k, mask=is_inside, other=0.0)


@triton.jit
def gate(
    seen, h, Q, n, FAN_IN: tl.constexpr, IW: tl.constexpr, H: tl.constexpr, HW: tl.constexpr, NUMBER: tl.constexpr
):
    """What a gate's units `n` add up of inputs, and of the memory, with biases; Q holds both weights, then their biases."""
    u: tl.constexpr = 3 * H * FAN_IN
    b: tl.constexpr = 3 * H * (FAN_IN + H) + NUMBER * H
    own = (
        tl.dot(seen, transposed_rows(Q, n, FAN_IN, IW, H, NUMBER * H))
        + tl.load(Q + b + n, mask=n < H, other=0.0)[None, :]
    )
    recalled = tl.dot(h, transposed_rows(Q + u, n, H, HW, H, NUMBER * H))
    return own, recalled + tl.load(Q + b + 3 * H + n, mask=n < H, other=0.0)[None, :]


@triton.jit
def recurrent_rollout_kernel(
    P, Q, SCALE, CENTER, SHIFT, UNIT, bound, NOISE, NOW, OBS, ACTION, LOGP, REWARD, TERMINATED, TRUNCATED, NEXT_OBS,
    STATE, MORE_STATE, OFFSET, DISTANCE, ELAPSED, EPISODE, KEY, WORLD_TERMINATED, WORLD_TRUNCATED, OVER,
    num_envs, limit, local_ratio, acceleration, MEMORY, BEFORE,
    SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr, H: tl.constexpr,
    HW: tl.constexpr, CELL_AT: tl.constexpr, OUTPUTS_AT: tl.constexpr, K: tl.constexpr, W: tl.constexpr,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, IS_NORMALIZED: tl.constexpr,
    WORLD: tl.constexpr, HAS_OPTION: tl.constexpr, N: tl.constexpr, T: tl.constexpr, KEEPS: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Q are the parameters P in half precision. BEFORE [T, L, H] keeps what was remembered before each row, where KEEPS.
    WORLD as in `rollout_kernel`."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = b < num_envs
    own = tl.arange(0, LANES)
    lane = tl.program_id(0) * (BLOCK * N) + own
    is_lane = (own < BLOCK * N) & (lane < num_envs * N)
    zero = tl.program_id(0).to(tl.int64) * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    NUM_LAYERS: tl.constexpr = len(SIZES) - 1
    FAN_IN: tl.constexpr = SIZES[NUM_LAYERS]
    A: tl.constexpr = len(PARTS) if len(PARTS) > 0 else K
    everything = tl.arange(0, HW)
    is_remembered = is_lane[:, None] & (everything < H)[None, :]
    y_at = tl.arange(0, W)
    for t in range(T):
        row = (zero + t) * num_envs * N
        x = seen_features(
            NOW, OBS + row * SIZES[0], SHIFT, UNIT, lane, is_lane, bound, IS_NORMALIZED, SIZES[0], WIDTHS[0]
        )
        x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST).to(tl.float16)
        w = load_tile(Q, OFFSETS[0], SIZES[0], SIZES[1], WIDTHS[1], WIDTHS[0], 0)
        seen = (activate(tl.dot(x, tl.trans(w)), IS_TANH).to(tl.float16),)
        for i in tl.static_range(1, NUM_LAYERS):
            w = load_tile(Q, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1], WIDTHS[i], 1)
            bias = load_bias(Q, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1])
            seen = (activate(tl.dot(seen[0], tl.trans(w)) + bias[None, :], IS_TANH).to(tl.float16),)
        is_new = is_lane & (t > 0)
        over = tl.load(TERMINATED + row - num_envs * N + lane, mask=is_new, other=0).to(tl.int1)
        over = over | tl.load(TRUNCATED + row - num_envs * N + lane, mask=is_new, other=0).to(tl.int1)
        goes_on = (over == 0)[:, None]
        now = MEMORY + (zero + t % 2) * num_envs * N * H + lane[:, None] * H
        after = MEMORY + (zero + (t + 1) % 2) * num_envs * N * H + lane[:, None] * H
        h = tl.load(now + everything[None, :], mask=is_remembered & goes_on, other=0.0)
        if KEEPS:
            tl.store(BEFORE + row * H + lane[:, None] * H + everything[None, :], h, mask=is_remembered)
        h = h.to(tl.float16)
        y = tl.zeros((LANES, W), tl.float32)
        for first in range(0, HW, BN):
            n = first + tl.arange(0, BN)
            is_unit = is_lane[:, None] & (n < H)[None, :]
            x_r, c_r = gate(seen[0], h, Q + CELL_AT, n, FAN_IN, WIDTHS[NUM_LAYERS], H, HW, 0)
            r = sigmoid(x_r + c_r)
            x_n, c = gate(seen[0], h, Q + CELL_AT, n, FAN_IN, WIDTHS[NUM_LAYERS], H, HW, 2)
            new = activate(x_n + r * c, True)
            x_z, c_z = gate(seen[0], h, Q + CELL_AT, n, FAN_IN, WIDTHS[NUM_LAYERS], H, HW, 1)
            z = sigmoid(x_z + c_z)
            new = new + z * (tl.load(now + n[None, :], mask=is_unit & goes_on, other=0.0) - new)
            tl.store(after + n[None, :], new, mask=is_unit)
            is_output = (n < H)[:, None] & (y_at < K)[None, :]
            o = tl.load(Q + OUTPUTS_AT + y_at[None, :] * H + n[:, None], mask=is_output, other=0.0)
            y = tl.dot(new.to(tl.float16), o, y)
        y += tl.load(P + OUTPUTS_AT + K * H + y_at, mask=y_at < K, other=0.0)[None, :]
        store_draw(
            y, lane, is_lane, P, OUTPUTS_AT + (H + 1) * K, None, NOISE + row * A, SCALE, CENTER, ACTION + row * A,
            LOGP + row, PARTS, BEGINS, STARTS, False, K, W,
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
