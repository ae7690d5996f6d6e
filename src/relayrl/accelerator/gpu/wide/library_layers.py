"""Layers whose products are cuBLAS's, with what belongs to them in the same launch or in one beside it."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.gradient_terms import MULTIPROCESSORS
from relayrl.accelerator.gpu.wide import layered_gradients as layered

SLOPE_BLOCK = 32, 64
"""Rows and columns that a program multiplies by slopes at a time."""


def hidden_layer(x: Tensor, weight: Tensor, bias: Tensor, is_tanh: bool, out: Tensor) -> None:
    """out = act(X Wᵀ + b)."""
    if is_tanh:
        torch.addmm(bias, x, weight.t(), out=out).tanh_()
    else:  # bias and relu are the product's epilogue
        torch.ops.aten._addmm_activation.out(bias, x, weight.t(), out=out)


def row_shares(num_rows: int) -> tuple[int, int]:
    """Programs among which rows are divided so that each writes one row of sums, and blocks of rows for each program."""
    steps = triton.cdiv(triton.cdiv(num_rows, SLOPE_BLOCK[0]), MULTIPROCESSORS)
    return triton.cdiv(num_rows, SLOPE_BLOCK[0] * steps), steps


def times_slope(dz: Tensor, hidden: Tensor, is_tanh: bool, sums: Tensor) -> None:
    """Multiply `dz` by the activation's slope; `sums` [programs, width] are parts of its sum over rows (`row_shares`)."""
    num_rows, width = dz.shape
    programs, steps = row_shares(num_rows)
    layered.slope_kernel[(programs, triton.cdiv(width, SLOPE_BLOCK[1]))](
        dz, hidden, sums, num_rows, WIDTH=width, IS_TANH=is_tanh, STEPS=steps, BM=SLOPE_BLOCK[0], BN=SLOPE_BLOCK[1]
    )
