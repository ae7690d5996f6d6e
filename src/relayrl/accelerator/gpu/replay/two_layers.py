"""MLPs of two hidden layers by `two_layer_kernels`: which those are, and in blocks of which size.

Their products are tf32, so that without it networks go layer by layer.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.clipped_adam import reduce_partials
from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision
from relayrl.accelerator.gpu.replay import layer_by_layer
from relayrl.accelerator.gpu.replay import two_layer_kernels as kernels
from relayrl.accelerator.gpu.replay.layer_by_layer import is_aligned
from relayrl.accelerator.gpu.replay.narrow_kernels import MAX_NARROW

MAX_WIDTH = 256
"""Columns of a hidden layer that a program holds."""
ROWS, ROWS_BACK = 128, 64
FORWARD, BACKWARD = {"BM": ROWS, "BK": 32, "num_warps": 8}, {"BM": ROWS_BACK, "BK": 32, "num_warps": 4}
LEARNS_BY_LAYERS = True


class Keeps(Enum):
    """Which hidden layers are kept for the way back."""

    NOTHING = 0
    LAST = 1
    """Where the inputs alone learn."""
    ALL = 2


def are_known(shape: MLPShape) -> bool:
    """Whether networks of a shape are those, and products may be tf32."""
    (num_inputs, *widths, num_outputs), is_tf32 = shape.sizes, torch.backends.cuda.matmul.allow_tf32
    is_narrow = num_inputs <= MAX_NARROW and num_outputs <= MAX_NARROW
    return is_tf32 and is_narrow and len(widths) == 2 and max(widths) <= MAX_WIDTH


def forward(shape: MLPShape, vector: Tensor, x: Tensor, out: Tensor, keeps: Keeps) -> list[Tensor]:
    """Write the outputs; gives the hidden layers that are kept."""
    num_rows, (_, first, second, _) = len(x), shape.sizes
    kept = [x.new_empty((num_rows, width)) for width in (first, second)][2 - keeps.value :]
    h1 = kept[0] if keeps is Keeps.ALL else None
    kernels.forward_kernel[(triton.cdiv(num_rows, ROWS),)](
        vector, x, h1, kept[-1] if kept else None, out, num_rows, KEEPS_H1=h1 is not None, KEEPS_H2=bool(kept),
        BN=_columns(second), PRECISION=Precision.TF32.value, **_sizes(shape), **FORWARD,
    )  # fmt: skip
    return kept


def backward(
    shape: MLPShape, vector: Tensor, gradient: Tensor | None, rows: tuple[Tensor, list[Tensor]], dy: Tensor,
    dx: Tensor | None, *, is_added: bool,
) -> None:  # fmt: skip
    """As `layer_by_layer.backward`."""
    (x, kept), (num_inputs, first, _, _) = rows, shape.sizes
    if LEARNS_BY_LAYERS and gradient is not None:
        layer_by_layer.backward(shape, vector, gradient, rows, dy, dx, is_added=is_added)
        return
    h2, programs, behind = kept[-1], triton.cdiv(len(x), ROWS_BACK), shape.offsets[1] + (first + 1) * shape.sizes[2]
    below = behind - shape.sizes[2]  # where the second layer's bias is
    ahead = (num_inputs + 1) * first
    dz, sums = None, None
    if gradient is not None:
        dz, sums = torch.empty_like(h2), x.new_empty((programs, ahead + len(gradient) - below))
    kernels.backward_kernel[(programs,)](
        vector, shape.layer_of(vector, 1)[0].t().contiguous(), x, h2, dy, dz, dx, sums, len(x),
        LEARNS=gradient is not None, HAS_DX=dx is not None, IS_ADDED=is_added, BN=_columns(first),
        PRECISION=Precision.TF32.value, **_sizes(shape), **BACKWARD,
    )  # fmt: skip
    if gradient is None or dz is None or sums is None:
        return
    weight = shape.layer_of(gradient, 1)[0]
    if is_aligned(weight):
        torch.mm(dz.t(), kept[0], out=weight)
    else:
        weight.copy_(torch.mm(dz.t(), kept[0]))
    reduce_partials(sums, gradient[:ahead], gradient[below:])


def _sizes(shape: MLPShape) -> dict[str, Any]:
    num_inputs, first, second, num_outputs = shape.sizes
    return {"F": num_inputs, "N1": first, "N2": second, "K": num_outputs, "IS_TANH": shape.is_tanh}


def _columns(width: int) -> int:
    return int(max(16, triton.next_power_of_2(width)))
