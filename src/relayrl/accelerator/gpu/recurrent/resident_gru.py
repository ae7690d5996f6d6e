"""The time loops of a GRU whose recurrent weights stay on chip, in half precision, for actor and critic in one launch.

Formulas and names are those of `cell_kernels`. Numbers that are multiplied or kept are float16, which has tf32's mantissa; sums
and the memory that goes from step to step are float32. Programs are `[blocks of lanes, networks]`; columns of networks lie one
behind the other, `[networks, T, l, …]`. WHERE [l] are a minibatch's lanes among all L, of SLOT [T, L] and GIVEN [K, L, H].
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.mlp_tiles import activate
from relayrl.accelerator.gpu.recurrent.cell_kernels import sigmoid

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
def gate_weights(U, gate, H: tl.constexpr, W: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """[W, W] one gate's recurrent weights, by what goes in and comes out: units of the memory, or of the gate if transposed."""
    r, c = tl.arange(0, W)[:, None], tl.arange(0, W)[None, :]
    at = gate * H * H + (c * H + r if IS_TRANSPOSED else r * H + c)
    return tl.load(U + at, mask=(r < H) & (c < H), other=0.0)


@triton.jit
def gru_forward_kernel(
    X, U, B, SLOT, V_SLOT, GIVEN, V_GIVEN, WHERE, BEFORE, OUT, LAST, GATES, num_lanes, num_all,
    T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KEEPS: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """BEFORE, OUT [T, l, H] and LAST [l, H] of projected inputs X [T, l, 3 H]; GATES [T, l, 4 H] keeps r, z, n, U_n h + b_n."""
    network = tl.program_id(1).to(tl.int64)
    zero = network * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    if network > 0:
        SLOT = V_SLOT
        GIVEN = V_GIVEN
    own = tl.program_id(0) * BL + tl.arange(0, BL)
    ok = own < num_lanes
    lane = tl.load(WHERE + own, mask=ok, other=0)
    n = tl.arange(0, W)
    is_unit = ok[:, None] & (n < H)[None, :]
    u = U + network * 3 * H * H
    u_r, u_z, u_n = (
        gate_weights(u, 0, H, W, True),
        gate_weights(u, 1, H, W, True),
        gate_weights(u, 2, H, W, True),
    )
    bias = B + network * 3 * H + n
    b_r = tl.load(bias, mask=n < H, other=0.0)[None, :]
    b_z = tl.load(bias + H, mask=n < H, other=0.0)[None, :]
    b_n = tl.load(bias + 2 * H, mask=n < H, other=0.0)[None, :]
    slot = tl.load(SLOT + lane, mask=ok, other=0)
    given = GIVEN + lane[:, None] * H + n[None, :]
    h = tl.load(given + slot[:, None] * num_all * H, mask=is_unit, other=0.0)
    unit, wide, kept = (
        own[:, None] * H + n[None, :],
        own[:, None] * (3 * H) + n[None, :],
        own[:, None] * (4 * H) + n[None, :],
    )
    for t in range(T):
        row = (network * T + t) * num_lanes
        x = X + row * (3 * H) + wide
        x_r = tl.load(x, mask=is_unit, other=0.0)
        x_z = tl.load(x + H, mask=is_unit, other=0.0)
        x_n = tl.load(x + 2 * H, mask=is_unit, other=0.0)
        slot = tl.load(SLOT + (zero + t + 1) * num_all + lane, mask=ok & (t < T - 1), other=-1)
        multiplied = h.to(tl.float16)
        tl.store(BEFORE + row * H + unit, multiplied, mask=is_unit)
        r = sigmoid(tl.dot(multiplied, u_r) + b_r + x_r.to(tl.float32))
        z = sigmoid(tl.dot(multiplied, u_z) + b_z + x_z.to(tl.float32))
        c = tl.dot(multiplied, u_n) + b_n
        new = activate(x_n.to(tl.float32) + r * c, True)
        h = new + z * (h - new)
        tl.store(OUT + row * H + unit, h.to(tl.float16), mask=is_unit)
        if KEEPS:
            gates = GATES + row * (4 * H) + kept
            tl.store(gates, r.to(tl.float16), mask=is_unit)
            tl.store(gates + H, z.to(tl.float16), mask=is_unit)
            tl.store(gates + 2 * H, new.to(tl.float16), mask=is_unit)
            tl.store(gates + 3 * H, c.to(tl.float16), mask=is_unit)
        if t == T - 1:
            tl.store(LAST + network * num_lanes * H + unit, h, mask=is_unit)
        starts = slot[:, None] >= 0
        h = tl.where(starts, tl.load(given + slot[:, None] * num_all * H, mask=is_unit & starts, other=0.0), h)


@triton.jit
def gru_backward_kernel(
    U, HEAD, V_HEAD, SLOT, V_SLOT, WHERE, BEFORE, GATES, DY, V_DY, SCALE, DX, SUMS, num_lanes, num_all,
    T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, V_K: tl.constexpr, BY: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """DX [T, l, 4 H], by what n, r, z add up and by U_n h, of DY [T, l, BY], the gradient by K outputs h HEADᵀ, times SCALE;
    SUMS [blocks, 4 H] of it over each program's rows."""
    network = tl.program_id(1).to(tl.int64)
    zero = network * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    num_outputs = K
    if network > 0:
        SLOT = V_SLOT
        HEAD = V_HEAD
        DY = V_DY
        num_outputs = V_K
    scale = tl.load(SCALE + network)
    own = tl.program_id(0) * BL + tl.arange(0, BL)
    ok = own < num_lanes
    lane = tl.load(WHERE + own, mask=ok, other=0)
    n = tl.arange(0, W)
    is_unit = ok[:, None] & (n < H)[None, :]
    u = U + network * 3 * H * H
    u_r, u_z, u_n = (
        gate_weights(u, 0, H, W, False),
        gate_weights(u, 1, H, W, False),
        gate_weights(u, 2, H, W, False),
    )
    unit, kept = own[:, None] * H + n[None, :], own[:, None] * (4 * H) + n[None, :]
    carried = tl.zeros((BL, W), tl.float32)
    nothing = carried + tl.where(num_lanes < 0, 1.0, 0.0)  # zeros of which the compiler does not know
    sum_n, sum_r = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    sum_z, sum_u = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    for step in range(T):
        t = T - 1 - step
        row = (network * T + t) * num_lanes
        gates = GATES + row * (4 * H) + kept
        r = tl.load(gates, mask=is_unit, other=0.0).to(tl.float32)
        z = tl.load(gates + H, mask=is_unit, other=0.0).to(tl.float32)
        new = tl.load(gates + 2 * H, mask=is_unit, other=0.0).to(tl.float32)
        c = tl.load(gates + 3 * H, mask=is_unit, other=0.0).to(tl.float32)
        h = tl.load(BEFORE + row * H + unit, mask=is_unit, other=0.0).to(tl.float32)
        starts = (tl.load(SLOT + (zero + t) * num_all + lane, mask=ok, other=0) >= 0)[:, None]
        d = carried
        for k in tl.static_range(K if K > V_K else V_K):
            dy = tl.load(DY + ((zero + t) * num_lanes + own) * BY + k, mask=ok & (k < num_outputs), other=0.0) * scale
            d += dy[:, None] * tl.load(HEAD + k * H + n, mask=(n < H) & (k < num_outputs), other=0.0)[None, :]
        dz = (d * (h - new) * z * (1.0 - z)).to(tl.float16)
        dn = d * (1.0 - z) * (1.0 - new * new)
        dr = (dn * c * r * (1.0 - r)).to(tl.float16)
        du = (dn * r).to(tl.float16)
        dn = dn.to(tl.float16)
        dx = DX + row * (4 * H) + kept
        tl.store(dx, dn, mask=is_unit)
        tl.store(dx + H, dr, mask=is_unit)
        tl.store(dx + 2 * H, dz, mask=is_unit)
        tl.store(dx + 3 * H, du, mask=is_unit)
        sum_n += tl.sum(dn.to(tl.float32), 0)
        sum_r += tl.sum(dr.to(tl.float32), 0)
        sum_z += tl.sum(dz.to(tl.float32), 0)
        sum_u += tl.sum(du.to(tl.float32), 0)
        # Products that are added to each other would have all warps share the rows, and twice as many as there are.
        carried = tl.dot(dr, u_r, d * z)
        carried += tl.dot(dz, u_z, nothing)
        carried += tl.dot(du, u_n, nothing)
        carried = tl.where(starts, 0.0, carried)
    sums = SUMS + (network * tl.num_programs(0) + tl.program_id(0)) * (4 * H) + n
    tl.store(sums, sum_n, mask=n < H)
    tl.store(sums + H, sum_r, mask=n < H)
    tl.store(sums + 2 * H, sum_z, mask=n < H)
    tl.store(sums + 3 * H, sum_u, mask=n < H)
