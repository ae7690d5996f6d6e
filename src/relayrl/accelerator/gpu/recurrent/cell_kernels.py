"""The time loops of a GRU and of an LSTM for a block of lanes: every program goes through all steps, memory in device memory.

GRU: r = σ(x_r + U_r h);  z = σ(x_z + U_z h);  n = tanh(x_n + r ⊙ U_n h);  h′ = n + z ⊙ (h − n).
LSTM: i, f, o = σ(x + U h);  g = tanh(x_g + U_g h);  c′ = f ⊙ c + i ⊙ g;  h′ = o ⊙ tanh(c′).
x are inputs that were projected before; gates lie in torch's order (r, z, n and i, f, g, o), G of them. A lane remembers W
numbers: h, or h and c. Columns are `[T, L, …]`. Rows with `SLOT` ≥ 0 begin with what is given; no gradient crosses them.
Programs share no lanes, and a barrier orders a program's own writes before its reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.mlp_tiles import activate


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def recalled(
    MEMORY, U, lane, ok, n, H: tl.constexpr, W: tl.constexpr, G: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """U h of the units `n`, [BL, BN] for each gate; a GRU has no fourth."""
    a, b = tl.zeros((BL, BN), tl.float32), tl.zeros((BL, BN), tl.float32)
    c, d = tl.zeros((BL, BN), tl.float32), tl.zeros((BL, BN), tl.float32)
    for chunk in range(0, H, BK):
        k = chunk + tl.arange(0, BK)
        h = tl.load(MEMORY + lane[:, None] * W + k[None, :], mask=ok[:, None] & (k < H)[None, :], other=0.0)
        is_inside = (n < H)[None, :] & (k < H)[:, None]
        w = U + n[None, :] * H + k[:, None]
        a = tl.dot(h, tl.load(w, mask=is_inside, other=0.0), a, input_precision=PRECISION)
        b = tl.dot(h, tl.load(w + H * H, mask=is_inside, other=0.0), b, input_precision=PRECISION)
        c = tl.dot(h, tl.load(w + 2 * H * H, mask=is_inside, other=0.0), c, input_precision=PRECISION)
        if G == 4:
            d = tl.dot(h, tl.load(w + 3 * H * H, mask=is_inside, other=0.0), d, input_precision=PRECISION)
    return a, b, c, d


@triton.jit
def forward_kernel(
    X, U, B, SLOT, GIVEN, BEFORE, OUT, LAST, GATES, num_lanes, T: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    G: tl.constexpr, KEEPS: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT [T, L, H], BEFORE [T, L, W] (its first row is given) and LAST [L, W]. Where a backward pass follows, GATES
    [T, L, (G + 1) H] keeps r, z, n, U_n h + b_n of a GRU, i, f, g, o, tanh(c′) of an LSTM."""
    lane = tl.program_id(0) * BL + tl.arange(0, BL)
    ok = lane < num_lanes
    zero = tl.program_id(0).to(tl.int64) * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    for t in range(T):
        row = (zero + t) * num_lanes
        slot = tl.load(SLOT + row + num_lanes + lane, mask=ok & (t < T - 1), other=-1)
        for first in range(0, H, BN):
            n = first + tl.arange(0, BN)
            is_n = n < H
            is_unit = ok[:, None] & is_n[None, :]
            a, b, c, d = recalled(BEFORE + row * W, U, lane, ok, n, H, W, G, BL, BN, BK, PRECISION)
            x = X + row * (G * H) + lane[:, None] * (G * H) + n[None, :]
            a += tl.load(B + n, mask=is_n, other=0.0)[None, :] + tl.load(x, mask=is_unit, other=0.0)
            b += tl.load(B + H + n, mask=is_n, other=0.0)[None, :] + tl.load(x + H, mask=is_unit, other=0.0)
            c += tl.load(B + 2 * H + n, mask=is_n, other=0.0)[None, :]
            x_third = tl.load(x + 2 * H, mask=is_unit, other=0.0)
            a, b = sigmoid(a), sigmoid(b)
            unit = lane[:, None] * W + n[None, :]
            following = (row + num_lanes) * W + unit
            given = GIVEN + slot[:, None] * num_lanes * W + unit
            starts = slot[:, None] >= 0
            gates = GATES + row * ((G + 1) * H) + lane[:, None] * ((G + 1) * H) + n[None, :]
            if G == 4:
                d += tl.load(B + 3 * H + n, mask=is_n, other=0.0)[None, :]
                d = sigmoid(d + tl.load(x + 3 * H, mask=is_unit, other=0.0))
                new = activate(c + x_third, True)
                cell = b * tl.load(BEFORE + row * W + H + unit, mask=is_unit, other=0.0) + a * new
                shown = activate(cell, True)
                after = d * shown
                given_cell = tl.load(given + H, mask=is_unit & starts, other=0.0)
                tl.store(BEFORE + H + following, tl.where(starts, given_cell, cell), mask=is_unit & (t < T - 1))
                tl.store(LAST + H + unit, cell, mask=is_unit & (t == T - 1))
                if KEEPS:
                    tl.store(gates + 3 * H, d, mask=is_unit)
                    tl.store(gates + 4 * H, shown, mask=is_unit)
            else:
                new = activate(x_third + a * c, True)
                h = tl.load(BEFORE + row * W + unit, mask=is_unit, other=0.0)
                after = new + b * (h - new)
                if KEEPS:
                    tl.store(gates + 3 * H, c, mask=is_unit)
            tl.store(OUT + row * H + lane[:, None] * H + n[None, :], after, mask=is_unit)
            given_after = tl.load(given, mask=is_unit & starts, other=0.0)
            tl.store(BEFORE + following, tl.where(starts, given_after, after), mask=is_unit & (t < T - 1))
            tl.store(LAST + unit, after, mask=is_unit & (t == T - 1))
            if KEEPS:
                tl.store(gates, a, mask=is_unit)
                tl.store(gates + H, b, mask=is_unit)
                tl.store(gates + 2 * H, new, mask=is_unit)
        tl.debug_barrier()


@triton.jit
def backward_kernel(
    U, SLOT, BEFORE, GATES, D_OUT, DX, DU, CARRIED, num_lanes, T: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    G: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """DX [T, L, G H] by the projected inputs, and DU [T, L, G H] by U h, which an LSTM has in one. CARRIED [L, W], zeros at
    first, is the gradient by what is remembered."""
    lane = tl.program_id(0) * BL + tl.arange(0, BL)
    ok = lane < num_lanes
    zero = tl.program_id(0).to(tl.int64) * 0  # offsets of rows are 64 bits wide, those inside of a row 32
    for step in range(T):
        t = T - 1 - step
        row = (zero + t) * num_lanes
        starts = (tl.load(SLOT + row + lane, mask=ok, other=0) >= 0)[:, None]
        for first in range(0, H, BN):
            n = first + tl.arange(0, BN)
            is_unit = ok[:, None] & (n < H)[None, :]
            unit = lane[:, None] * W + n[None, :]
            gates = GATES + row * ((G + 1) * H) + lane[:, None] * ((G + 1) * H) + n[None, :]
            a, b = tl.load(gates, mask=is_unit, other=0.0), tl.load(gates + H, mask=is_unit, other=0.0)
            new, fourth = (
                tl.load(gates + 2 * H, mask=is_unit, other=0.0),
                tl.load(gates + 3 * H, mask=is_unit, other=0.0),
            )
            d = tl.load(D_OUT + row * H + lane[:, None] * H + n[None, :], mask=is_unit, other=0.0)
            d += tl.load(CARRIED + unit, mask=is_unit, other=0.0)
            x = row * (G * H) + lane[:, None] * (G * H) + n[None, :]
            if G == 4:
                shown = tl.load(gates + 4 * H, mask=is_unit, other=0.0)
                dc = tl.load(CARRIED + H + unit, mask=is_unit, other=0.0) + d * fourth * (1.0 - shown * shown)
                cell = tl.load(BEFORE + row * W + H + unit, mask=is_unit, other=0.0)
                tl.store(DX + x, dc * new * a * (1.0 - a), mask=is_unit)
                tl.store(DX + x + H, dc * cell * b * (1.0 - b), mask=is_unit)
                tl.store(DX + x + 2 * H, dc * a * (1.0 - new * new), mask=is_unit)
                tl.store(DX + x + 3 * H, d * shown * fourth * (1.0 - fourth), mask=is_unit)
                tl.store(CARRIED + H + unit, tl.where(starts, 0.0, dc * b), mask=is_unit)
            else:
                h = tl.load(BEFORE + row * W + unit, mask=is_unit, other=0.0)
                dz = d * (h - new) * b * (1.0 - b)
                dn = d * (1.0 - b) * (1.0 - new * new)
                dr = dn * fourth * a * (1.0 - a)
                tl.store(DX + x, dr, mask=is_unit)
                tl.store(DX + x + H, dz, mask=is_unit)
                tl.store(DX + x + 2 * H, dn, mask=is_unit)
                tl.store(DU + x, dr, mask=is_unit)
                tl.store(DU + x + H, dz, mask=is_unit)
                tl.store(DU + x + 2 * H, dn * a, mask=is_unit)
                tl.store(CARRIED + unit, d * b, mask=is_unit)
        tl.debug_barrier()
        for first in range(0, H, BN):
            n = first + tl.arange(0, BN)
            is_unit = ok[:, None] & (n < H)[None, :]
            unit = lane[:, None] * W + n[None, :]
            total = tl.zeros((BL, BN), tl.float32)
            for chunk in range(0, G * H, BK):
                k = chunk + tl.arange(0, BK)
                du = DU + row * (G * H) + lane[:, None] * (G * H) + k[None, :]
                is_gate = k < G * H
                w = tl.load(U + k[:, None] * H + n[None, :], mask=is_gate[:, None] & (n < H)[None, :], other=0.0)
                du = tl.load(du, mask=ok[:, None] & is_gate[None, :], other=0.0)
                total = tl.dot(du, w, total, input_precision=PRECISION)
            if G == 3:
                total += tl.load(CARRIED + unit, mask=is_unit, other=0.0)
            tl.store(CARRIED + unit, tl.where(starts, 0.0, total), mask=is_unit)
        tl.debug_barrier()
