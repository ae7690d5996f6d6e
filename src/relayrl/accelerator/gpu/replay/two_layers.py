"""MLPs of two hidden layers by `two_layer_kernels`: which those are, and in blocks of which size.

Their products are tf32, so that without it networks go layer by layer; so does the way back to parameters that learn.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision
from relayrl.accelerator.gpu.replay import layer_by_layer
from relayrl.accelerator.gpu.replay import two_layer_kernels as kernels
from relayrl.accelerator.gpu.replay.narrow_kernels import MAX_NARROW

MAX_WIDTH = 256
"""Columns of a hidden layer that a program holds."""
FORWARD, BACK = {"BM": 128, "BK": 32, "num_warps": 8}, {"BM": 64, "BK": 32, "num_warps": 4}


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
    kernels.forward_kernel[(triton.cdiv(num_rows, FORWARD["BM"]),)](
        vector, x, h1, kept[-1] if kept else None, out, num_rows, KEEPS_H1=h1 is not None, KEEPS_H2=bool(kept),
        **_constants(shape, second), **FORWARD,
    )  # fmt: skip
    return kept


def backward(
    shape: MLPShape, vector: Tensor, gradient: Tensor | None, rows: tuple[Tensor, list[Tensor]], dy: Tensor,
    dx: Tensor | None, *, is_added: bool,
) -> None:  # fmt: skip
    """As `layer_by_layer.backward`."""
    if gradient is not None:
        layer_by_layer.backward(shape, vector, gradient, rows, dy, dx, is_added=is_added)
    elif dx is not None:
        x, kept = rows
        transposed = shape.layer_of(vector, 1)[0].t().contiguous()
        kernels.input_gradient_kernel[(triton.cdiv(len(x), BACK["BM"]),)](
            vector, transposed, x, kept[-1], dy, dx, len(x), IS_ADDED=is_added, **_constants(shape, shape.sizes[1]),
            **BACK,
        )  # fmt: skip


def _constants(shape: MLPShape, width: int) -> dict[str, Any]:
    """Of a kernel whose programs hold `width` columns."""
    num_inputs, first, second, num_outputs = shape.sizes
    sizes = {"F": num_inputs, "N1": first, "N2": second, "K": num_outputs, "IS_TANH": shape.is_tanh}
    return {**sizes, "BN": max(16, triton.next_power_of_2(width)), "PRECISION": Precision.TF32.value}
