"""`MemoryCell.unroll_lanes` with its time loop in one launch forward and one backward, as a function of autograd.

The inputs' projection, and the sums over time that the weights' gradients are, are matrix products outside of the loop.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.nn.functional import linear

from relayrl.accelerator.gpu.mlp_tiles import Precision, is_trained_float32
from relayrl.accelerator.gpu.recurrent.cell_kernels import backward_kernel, forward_kernel
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.memory_cell import MemoryCell, MemoryStarts, UnrolledLanes

_CELLS, _LAYERS = BuiltIns(MemoryCell), BuiltIns(nn.GRU, nn.LSTM)


def is_known_cell(cell: object) -> bool:
    """Whether a cell is exactly RelayRL's own, with parameters that learn."""
    if not isinstance(cell, MemoryCell) or cell not in _CELLS or cell.layer not in _LAYERS:
        return False
    return all(is_trained_float32(weight) for weight in cell.layer.all_weights[0])


def fused_unroll(cell: MemoryCell, inputs: Tensor, starts: MemoryStarts, precision: Precision) -> UnrolledLanes:
    """`cell.unroll_lanes(inputs, starts)` of a known cell. Only `outputs` can be differentiated."""
    input_weight, recurrent_weight, input_bias, recurrent_bias = cell.layer.all_weights[0]
    projected = linear(inputs, input_weight, input_bias)
    keeps = torch.is_grad_enabled() and (projected.requires_grad or recurrent_weight.requires_grad)
    loop = projected, recurrent_weight, recurrent_bias, starts.slot, starts.given, precision, keeps
    made: tuple[Tensor, Tensor, Tensor] = _Loop.apply(*loop)  # type: ignore[no-untyped-call]
    return UnrolledLanes(*made)


def _blocks(num_lanes: int, hidden: int) -> dict[str, int]:
    """Lanes of a program, so that there are programs for a whole GPU where there are lanes for it; tiles of units."""
    lanes = 64 if num_lanes >= 64 * 100 else 32 if num_lanes >= 32 * 8 else 16
    units = min(64, max(16, triton.next_power_of_2(hidden)))
    return {
        "BL": lanes,
        "BN": units,
        "BK": min(32, units),
        "num_warps": 8 if lanes * units >= 2048 else 4,
        "num_stages": 2,
    }


class _Loop(torch.autograd.Function):
    """Outputs [T, L, H], memory before rows [T, L, W] and after the last [L, W], of projected inputs [T, L, G · H]."""

    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor,
        slot: Tensor,
        given: Tensor,
        precision: Precision,
        keeps: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (num_steps, num_lanes), hidden = projected.shape[:2], weight.shape[1]
        num_gates, width = len(weight) // hidden, given.shape[-1]
        x, slot, given = projected.contiguous(), slot.contiguous(), given.contiguous()
        before, out = x.new_empty(num_steps, num_lanes, width), x.new_empty(num_steps, num_lanes, hidden)
        before[0] = MemoryStarts(slot, given).entered(0, given[0])
        last = x.new_empty(num_lanes, width)
        gates = x.new_empty(num_steps, num_lanes, (num_gates + 1) * hidden) if keeps else x
        blocks = _blocks(num_lanes, hidden)
        ctx.grid = (triton.cdiv(num_lanes, blocks["BL"]),)
        ctx.sizes = {"T": num_steps, "H": hidden, "W": width, "G": num_gates, "PRECISION": precision.value, **blocks}
        arguments = x, weight, bias, slot, given, before, out, last, gates, num_lanes
        forward_kernel[ctx.grid](*arguments, KEEPS=keeps, **ctx.sizes)
        if keeps:
            ctx.save_for_backward(weight, slot, before, gates)
        ctx.mark_non_differentiable(before, last)
        return out, before, last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, slot, before, gates = ctx.saved_tensors
        (num_steps, num_lanes, width), (num_products, hidden) = before.shape, weight.shape
        dx = before.new_empty(num_steps, num_lanes, num_products)
        # Of an LSTM, what the inputs' products are added to is added to the memory's as well.
        du = dx if width > hidden else torch.empty_like(dx)
        carried = before.new_zeros(num_lanes, width)
        arguments = weight, slot, before, gates, gradients[0].contiguous(), dx, du, carried, num_lanes
        backward_kernel[ctx.grid](*arguments, **ctx.sizes)
        recalled = du.flatten(0, 1)
        d_weight = recalled.t() @ before[..., :hidden].flatten(0, 1)
        return dx, d_weight, recalled.sum(0), None, None, None, None
