"""The order of rows in minibatches; and what follows the gradients of one, for actor and critic at once: sums of their parts,
metrics, the KL limit, Adam.

The latter are two launches. The first adds up the programs' parts in order and, where the KL exceeds its limit, sets `KEEP` to
0; the second steps the actor where it is kept, and the critic. Metrics are added to `POLICY_SUMS` (of steps that were taken:
loss, KL, entropy, clipped, norm, steps) and `VALUE_SUMS` (loss, norm, steps).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relayrl.accelerator.gpu.clipped_adam import (
    ADAM_CONSTANTS,
    REDUCE_COLUMNS,
    REDUCE_ROWS,
    STEP_BLOCK,
    FusedAdam,
    adam_block,
    column_sums,
    norm_of,
)
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel

ROUNDS = tl.constexpr(6)
ORDER_BLOCK = 1024


@triton.jit
def mixed(x, KEYS, BITS: tl.constexpr):
    """A bijection of the numbers below 2^BITS: an exclusive or, a product with an odd number and a shift in every round."""
    MASK: tl.constexpr = (1 << BITS) - 1
    for i in tl.static_range(ROUNDS):
        x = (x ^ tl.load(KEYS + 2 * i)) & MASK
        x = (x * (tl.load(KEYS + 2 * i + 1) | 1)) & MASK
        x = x ^ (x >> ((BITS + 1) // 2))
    return x


@Kernel
def order_kernel(KEYS, ORDER, num_rows, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """A permutation of the numbers below num_rows: what leaves them is mixed again until it is back (cycle walking)."""
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    x = tl.where(i < num_rows, mixed(i, KEYS, BITS), 0)
    while tl.max(x, 0) >= num_rows:
        x = tl.where(x >= num_rows, mixed(x, KEYS, BITS), x)
    tl.store(ORDER + i, x, mask=i < num_rows)


def shuffled_rows(num_rows: int, generator: torch.Generator) -> Tensor:
    """[M] the numbers below `num_rows` in an order that random keys decide."""
    device = generator.device
    keys = torch.randint(1 << 31, (2 * ROUNDS.value,), generator=generator, device=device)
    order = torch.empty(num_rows, dtype=torch.int64, device=device)
    bits = max(1, (num_rows - 1).bit_length())
    order_kernel[(triton.cdiv(num_rows, ORDER_BLOCK),)](keys, order, num_rows, BITS=bits, BLOCK=ORDER_BLOCK)
    return order


@triton.jit
def gradient_block(
    p, PARTIALS, GRADIENT, SQUARES, stride, num_parameters, G, STEPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    """A block of a gradient, and the sum of its squares."""
    c = p * C + tl.arange(0, C)
    sums = column_sums(PARTIALS, stride, c, c < num_parameters, G, STEPS, R, C)
    tl.store(GRADIENT + c, sums, mask=c < num_parameters)
    tl.store(SQUARES + p, tl.sum(sums * sums, 0))


@Kernel
def sums_kernel(
    PARTIALS, GRADIENT, SQUARES, COUNT, stride, num_parameters, num_blocks, POLICY_SUMS, KEEP, kl_limit,
    V_PARTIALS, V_GRADIENT, V_SQUARES, V_COUNT, v_stride, num_v_parameters, num_v_blocks, VALUE_SUMS, G,
    STEPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Programs: the blocks of the actor's gradient, its metrics, the blocks of the critic's, its metrics."""
    p = tl.program_id(0)
    i = tl.arange(0, 4)
    if p < num_blocks:
        gradient_block(p, PARTIALS, GRADIENT, SQUARES, stride, num_parameters, G, STEPS, R, C)
    elif p == num_blocks:
        metrics = column_sums(PARTIALS, stride, num_parameters + i, i < 4, G, STEPS, R, 4)
        kl = tl.sum(tl.where(i == 1, metrics, 0.0), 0)
        keep = tl.load(KEEP) * tl.where(kl <= kl_limit, 1.0, 0.0)
        tl.store(KEEP, keep)
        tl.store(COUNT, tl.load(COUNT) + keep.to(tl.float64))
        tl.store(POLICY_SUMS + i, tl.load(POLICY_SUMS + i) + metrics * keep)
        tl.store(POLICY_SUMS + 5, tl.load(POLICY_SUMS + 5) + keep)
    elif p < num_blocks + 1 + num_v_blocks:
        gradient_block(
            p - num_blocks - 1, V_PARTIALS, V_GRADIENT, V_SQUARES, v_stride, num_v_parameters, G, STEPS, R, C
        )
    else:
        metrics = column_sums(V_PARTIALS, v_stride, num_v_parameters + i, i < 1, G, STEPS, R, 4)
        tl.store(VALUE_SUMS + i, tl.load(VALUE_SUMS + i, mask=i < 1, other=0.0) + metrics, mask=i < 1)
        tl.store(VALUE_SUMS + 2, tl.load(VALUE_SUMS + 2) + 1.0)
        tl.store(V_COUNT, tl.load(V_COUNT) + 1.0)


@Kernel
def steps_kernel(
    VECTOR, GRADIENT, FIRST, SECOND, SQUARES, COUNT, LR, num_parameters, num_blocks, max_norm, epsilon, POLICY_SUMS, KEEP,
    V_VECTOR, V_GRADIENT, V_FIRST, V_SECOND, V_SQUARES, V_COUNT, V_LR, num_v_parameters, num_v_blocks, v_max_norm, v_epsilon,
    VALUE_SUMS, num_programs, BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr,
    BLOCKS: tl.constexpr, V_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs: `num_programs` blocks of the actor's parameters, then those of the critic's."""
    p = tl.program_id(0)
    if p < num_programs:
        norm = norm_of(SQUARES, num_blocks, BLOCKS)
        keep = tl.load(KEEP)
        if p == 0:
            tl.store(POLICY_SUMS + 4, tl.load(POLICY_SUMS + 4) + norm * keep)
        if keep != 0:
            adam_block(
                p, norm, VECTOR, GRADIENT, FIRST, SECOND, COUNT, LR, num_parameters, max_norm, epsilon,
                BETA1, BETA2, LOG_BETA1, LOG_BETA2, BLOCK,
            )  # fmt: skip
    else:
        norm = norm_of(V_SQUARES, num_v_blocks, V_BLOCKS)
        if p == num_programs:
            tl.store(VALUE_SUMS + 1, tl.load(VALUE_SUMS + 1) + norm)
        adam_block(
            p - num_programs, norm, V_VECTOR, V_GRADIENT, V_FIRST, V_SECOND, V_COUNT, V_LR, num_v_parameters,
            v_max_norm, v_epsilon, BETA1, BETA2, LOG_BETA1, LOG_BETA2, BLOCK,
        )  # fmt: skip


def step_both(
    partials: tuple[Tensor, Tensor],
    adams: tuple[FusedAdam, FusedAdam],
    squares: tuple[Tensor, Tensor],
    sums: tuple[Tensor, Tensor],
    keep: Tensor,
    kl_limit: float,
) -> None:
    """Add up the parts of both gradients `[G, …]` and step; `squares` has room for a number of every `REDUCE_COLUMNS`."""
    (pi, vf), num_rows = (adam.flat for adam in adams), partials[0].shape[0]
    blocks = [triton.cdiv(flat.vector.numel(), REDUCE_COLUMNS) for flat in (pi, vf)]
    sums_kernel[(blocks[0] + blocks[1] + 2,)](
        partials[0], pi.gradient, squares[0], adams[0].num_steps, partials[0].stride(0), pi.vector.numel(), blocks[0],
        sums[0], keep, kl_limit, partials[1], vf.gradient, squares[1], adams[1].num_steps, partials[1].stride(0),
        vf.vector.numel(), blocks[1], sums[1], num_rows, STEPS=triton.cdiv(num_rows, REDUCE_ROWS), R=REDUCE_ROWS,
        C=REDUCE_COLUMNS,
    )  # fmt: skip
    programs = [triton.cdiv(flat.vector.numel(), STEP_BLOCK) for flat in (pi, vf)]
    steps_kernel[(programs[0] + programs[1],)](
        pi.vector, pi.gradient, pi.first_moment, pi.second_moment, squares[0], adams[0].num_steps, adams[0].lr,
        pi.vector.numel(), blocks[0], pi.max_norm, pi.epsilon, sums[0], keep, vf.vector, vf.gradient, vf.first_moment,
        vf.second_moment, squares[1], adams[1].num_steps, adams[1].lr, vf.vector.numel(), blocks[1], vf.max_norm,
        vf.epsilon, sums[1], programs[0], BLOCKS=triton.next_power_of_2(blocks[0]),
        V_BLOCKS=triton.next_power_of_2(blocks[1]), **ADAM_CONSTANTS,
    )  # fmt: skip
