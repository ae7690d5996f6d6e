"""The time loops of a GRU whose recurrent weights stay on chip, in half precision, for actor and critic in one launch.

Formulas and names are those of `cell_kernels`. Numbers that are multiplied or kept are float16, which has tf32's mantissa; sums
and the memory that goes from step to step are float32. Programs are `[blocks of lanes, networks]`; columns of networks lie one
behind the other, `[networks, T, l, …]`. WHERE [l] are a minibatch's lanes among all L, of SLOT [T, L] and GIVEN [K, L, H].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gate_weights(U, gate, H: tl.constexpr, W: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """[W, W] one gate's recurrent weights, by what goes in and comes out: units of the memory, or of the gate if transposed."""
    r, c = tl.arange(0, W)[:, None], tl.arange(0, W)[None, :]
    at = gate * H * H + (c * H + r if IS_TRANSPOSED else r * H + c)
    return tl.load(U + at, mask=(r < H) & (c < H), other=0.0)


@triton.jit
def fast_sigmoid(x):
    """By one reciprocal root: two instructions of the special units and three more, where a division takes ten."""
    root = tl.math.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def fast_tanh(x):
    root = tl.math.rsqrt(1.0 + tl.exp2(x * 2.8853900817779268))
    return 1.0 - 2.0 * (root * root)


@triton.jit
def gru_forward_kernel(
    X, U, B, SLOT, V_SLOT, GIVEN, V_GIVEN, WHERE, BEFORE, OUT, LAST, GATES, num_lanes, num_all,
    T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KEEPS: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """BEFORE, OUT [T, l, H] and LAST [l, H] of projected inputs X [T, l, 3 H] that have the biases of r and z, and B [H] that
    of U_n h; GATES [T, l, 4 H] keeps r, z, n, U_n h + b_n."""
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
    b_n = tl.load(B + network * H + n, mask=n < H, other=0.0)[None, :]
    slot = tl.load(SLOT + lane, mask=ok, other=0)
    given = GIVEN + lane[:, None] * H + n[None, :]
    h = tl.load(given + slot[:, None] * num_all * H, mask=is_unit, other=0.0)
    unit, wide, kept = (
        own[:, None] * H + n[None, :],
        own[:, None] * (3 * H) + n[None, :],
        own[:, None] * (4 * H) + n[None, :],
    )
    # What a step needs of device memory is loaded while the one before it is computed.
    x = X + network * T * num_lanes * (3 * H) + wide
    x_r = tl.load(x, mask=is_unit, other=0.0)
    x_z = tl.load(x + H, mask=is_unit, other=0.0)
    x_n = tl.load(x + 2 * H, mask=is_unit, other=0.0)
    slot = tl.load(SLOT + num_all + lane, mask=ok & (T > 1), other=-1)
    for t in range(T):
        row = (network * T + t) * num_lanes
        is_next = is_unit & (t < T - 1)
        x = X + (row + num_lanes) * (3 * H) + wide
        next_r = tl.load(x, mask=is_next, other=0.0)
        next_z = tl.load(x + H, mask=is_next, other=0.0)
        next_n = tl.load(x + 2 * H, mask=is_next, other=0.0)
        next_slot = tl.load(SLOT + (zero + t + 2) * num_all + lane, mask=ok & (t < T - 2), other=-1)
        multiplied = h.to(tl.float16)
        tl.store(BEFORE + row * H + unit, multiplied, mask=is_unit)
        r = fast_sigmoid(tl.dot(multiplied, u_r) + x_r.to(tl.float32))
        c = tl.dot(multiplied, u_n) + b_n
        new = fast_tanh(x_n.to(tl.float32) + r * c)
        if KEEPS:
            gates = GATES + row * (4 * H) + kept
            tl.store(gates, r.to(tl.float16), mask=is_unit)
            tl.store(gates + 2 * H, new.to(tl.float16), mask=is_unit)
            tl.store(gates + 3 * H, c.to(tl.float16), mask=is_unit)
        z = fast_sigmoid(tl.dot(multiplied, u_z) + x_z.to(tl.float32))
        h = new + z * (h - new)
        if KEEPS:
            tl.store(gates + H, z.to(tl.float16), mask=is_unit)
        tl.store(OUT + row * H + unit, h.to(tl.float16), mask=is_unit)
        if t == T - 1:
            tl.store(LAST + network * num_lanes * H + unit, h, mask=is_unit)
        starts = slot[:, None] >= 0
        h = tl.where(starts, tl.load(given + slot[:, None] * num_all * H, mask=is_unit & starts, other=0.0), h)
        x_r, x_z, x_n, slot = next_r, next_z, next_n, next_slot


@triton.jit
def kept_of_row(
    GATES, BEFORE, DY, SLOT, row, row_of_all, dy_row, lane, own, unit, kept, y, is_unit, ok,
    H: tl.constexpr, BY: tl.constexpr,
):  # fmt: skip
    """r, z, n, U_n h + b_n and h of a row, the gradient by its outputs, and where it begins anew."""
    gates = GATES + row * (4 * H) + kept
    r = tl.load(gates, mask=is_unit, other=0.0)
    z = tl.load(gates + H, mask=is_unit, other=0.0)
    new = tl.load(gates + 2 * H, mask=is_unit, other=0.0)
    c = tl.load(gates + 3 * H, mask=is_unit, other=0.0)
    h = tl.load(BEFORE + row * H + unit, mask=is_unit, other=0.0)
    dy = tl.load(DY + (dy_row + own)[:, None] * BY + y[None, :], mask=ok[:, None], other=0.0)
    return r, z, new, c, h, dy, tl.load(SLOT + row_of_all + lane, mask=ok, other=0)


@triton.jit
def gru_backward_kernel(
    U, HEADS, SLOT, V_SLOT, WHERE, BEFORE, GATES, DY, V_DY, DX, SUMS, num_lanes, num_all,
    T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BY: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """DX [T, l, 4 H], by what n, r, z add up and by U_n h, of DY [T, l, BY], the gradient by the outputs h HEADᵀ, where HEADS
    [networks, BY, H]; SUMS [blocks, 4 H] of it over each program's rows."""
    network = tl.program_id(1).to(tl.int64)
    zero = network * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    if network > 0:
        SLOT = V_SLOT
        DY = V_DY
    own = tl.program_id(0) * BL + tl.arange(0, BL)
    ok = own < num_lanes
    lane = tl.load(WHERE + own, mask=ok, other=0)
    n = tl.arange(0, W)
    y = tl.arange(0, BY)
    is_unit = ok[:, None] & (n < H)[None, :]
    u = U + network * 3 * H * H
    u_r, u_z, u_n = (
        gate_weights(u, 0, H, W, False),
        gate_weights(u, 1, H, W, False),
        gate_weights(u, 2, H, W, False),
    )
    head = tl.load(HEADS + network * BY * H + y[:, None] * H + n[None, :], mask=(n < H)[None, :], other=0.0)
    unit, kept = own[:, None] * H + n[None, :], own[:, None] * (4 * H) + n[None, :]
    carried = tl.zeros((BL, W), tl.float32)
    sum_n, sum_r, sum_z, sum_u = carried, carried, carried, carried
    # What a step needs of device memory is loaded while the one before it is computed.
    row = (network * T + T - 1) * num_lanes
    r, z, new, c, h, dy, slot = kept_of_row(
        GATES, BEFORE, DY, SLOT, row, (zero + T - 1) * num_all, (zero + T - 1) * num_lanes, lane, own, unit, kept, y,
        is_unit, ok, H, BY,
    )  # fmt: skip
    for step in range(T):
        t = T - 1 - step
        row = (network * T + t) * num_lanes
        before = zero + tl.where(t > 0, t - 1, 0)
        next_r, next_z, next_new, next_c, next_h, next_dy, next_slot = kept_of_row(
            GATES, BEFORE, DY, SLOT, (network * T + before) * num_lanes, before * num_all, before * num_lanes, lane, own,
            unit, kept, y, is_unit, ok, H, BY,
        )  # fmt: skip
        d = tl.dot(dy, head, carried)
        update, tanh = z.to(tl.float32), new.to(tl.float32)
        dn = (d - d * update) * (1.0 - tanh * tanh)
        dz = (d * (h.to(tl.float32) - tanh) * (update - update * update)).to(tl.float16)
        reset = r.to(tl.float32)
        du = (dn * reset).to(tl.float16)
        dr = (dn * c.to(tl.float32) * (reset - reset * reset)).to(tl.float16)
        carried = tl.dot(dr, u_r, d * update)
        carried = tl.dot(dz, u_z, carried)
        carried = tl.dot(du, u_n, carried)
        carried = tl.where((slot >= 0)[:, None], 0.0, carried)
        dn = dn.to(tl.float16)
        dx = DX + row * (4 * H) + kept
        tl.store(dx, dn, mask=is_unit)
        tl.store(dx + H, dr, mask=is_unit)
        tl.store(dx + 2 * H, dz, mask=is_unit)
        tl.store(dx + 3 * H, du, mask=is_unit)
        sum_n += dn.to(tl.float32)
        sum_r += dr.to(tl.float32)
        sum_z += dz.to(tl.float32)
        sum_u += du.to(tl.float32)
        r, z, new, c, h, dy, slot = next_r, next_z, next_new, next_c, next_h, next_dy, next_slot
    sums = SUMS + (network * tl.num_programs(0) + tl.program_id(0)) * (4 * H) + n
    tl.store(sums, tl.sum(sum_n, 0), mask=n < H)
    tl.store(sums + H, tl.sum(sum_r, 0), mask=n < H)
    tl.store(sums + 2 * H, tl.sum(sum_z, 0), mask=n < H)
    tl.store(sums + 3 * H, tl.sum(sum_u, 0), mask=n < H)
