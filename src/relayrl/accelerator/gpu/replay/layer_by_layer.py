"""An MLP of any shape, layer by layer, with its parameters in a flat vector: products by cuBLAS, with bias and relu in their
epilogue, in tf32 or float32 as torch's are allowed to be; the thin layers at both ends by `narrow_kernels`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.clipped_adam import reduce_partials
from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision
from relayrl.accelerator.gpu.replay import narrow_kernels as narrow
from relayrl.accelerator.gpu.replay.narrow_kernels import MAX_NARROW
from relayrl.accelerator.gpu.wide.layered_gradients import layer_kernel
from relayrl.accelerator.gpu.wide.library_layers import SLOPE_BLOCK, hidden_layer, row_shares, times_slope

MAX_FIRST = 32
"""Inputs of a first layer up to which a kernel computes it: cuBLAS has no tf32 for rows that are no multiple of 16 bytes."""
WHOLE_ROWS = 8192
"""Numbers of whole rows that a program holds."""
ALIGNMENT = 16
"""Bytes; cuBLAS has its fast products for matrices that begin there."""


def is_aligned(vector: Tensor) -> bool:
    """Whether a vector begins where matrices should: the second of two networks in one may begin anywhere."""
    return vector.data_ptr() % ALIGNMENT == 0


def forward(shape: MLPShape, vector: Tensor, x: Tensor, out: Tensor) -> list[Tensor]:
    """Write the outputs; gives what the hidden layers give."""
    given, num_rows = [x], len(x)
    for i, width in enumerate(shape.sizes[1:-1]):
        hidden = x.new_empty((num_rows, width))
        if i == 0 and shape.sizes[0] <= MAX_FIRST:
            columns = min(128, max(16, triton.next_power_of_2(width)))
            layer_kernel[(triton.cdiv(num_rows, 64), triton.cdiv(width, columns))](
                vector, x, None, hidden, num_rows, START=0, FAN_IN=shape.sizes[0], FAN_OUT=width, IS_GATHERED=False,
                IS_TANH=shape.is_tanh, BM=64, BN=columns, BK=16, PRECISION=Precision.NEAR_FLOAT32.value,
                num_stages=1,
            )  # fmt: skip
        else:
            hidden_layer(given[i], *shape.layer_of(vector, i), shape.is_tanh, hidden)
        given.append(hidden)
    width, num_outputs = shape.sizes[-2:]
    if num_outputs <= MAX_NARROW:
        rows, columns = _whole_rows(width)
        narrow.outputs_kernel[(triton.cdiv(num_rows, rows),)](
            vector, given[-1], out, num_rows, START=shape.offsets[-1], N=width, K=num_outputs, BM=rows, BN=columns
        )
    else:
        weight, bias = shape.layer_of(vector, shape.depth)
        torch.addmm(bias, given[-1], weight.t(), out=out)
    return given[1:]


def _whole_rows(width: int) -> tuple[int, int]:
    """Rows of a program that has all columns, and those."""
    columns = triton.next_power_of_2(width)
    return max(1, min(64, WHOLE_ROWS // columns)), columns


def backward(
    shape: MLPShape, vector: Tensor, gradient: Tensor | None, rows: tuple[Tensor, list[Tensor]], dy: Tensor,
    dx: Tensor | None, *, is_added: bool,
) -> None:  # fmt: skip
    """Write the gradients of parameters that learn, and that of the inputs where it is asked for, or add it; `rows` are the
    inputs and what `forward` gave."""
    _Backward(shape, vector, gradient, *rows).run(dy, dx, is_added=is_added)


class _Backward:
    """The way back through one network."""

    def __init__(
        self, shape: MLPShape, vector: Tensor, gradient: Tensor | None, x: Tensor, hidden: list[Tensor]
    ) -> None:
        self._shape, self._vector, self._given = shape, vector, [x, *hidden]
        self._gradient = gradient
        # Products are written where matrices begin, too.
        is_written = gradient is None or is_aligned(gradient)
        self._written = gradient if is_written or gradient is None else torch.empty_like(gradient)
        self._programs, self._steps = row_shares(len(x))

    def run(self, dy: Tensor, dx: Tensor | None, *, is_added: bool) -> None:
        """Write the gradients of the parameters, and that of the inputs, or add it."""
        shape = self._shape
        dz = self._through_outputs(dy)
        for i in range(shape.depth - 1, 0, -1):
            if self._written is not None:
                torch.mm(dz.t(), self._given[i], out=shape.layer_of(self._written, i)[0])
            dz = torch.mm(dz, shape.layer_of(self._vector, i)[0])
            if i > 1 or shape.sizes[0] > MAX_NARROW:
                self._times_slope(dz, i - 1)
        self._through_inputs(dz, dx, is_added)
        if self._gradient is not None and self._written is not None and self._written is not self._gradient:
            self._gradient.copy_(self._written)

    def _through_outputs(self, dy: Tensor) -> Tensor:
        shape, h = self._shape, self._given[-1]
        (width, num_outputs), depth = shape.sizes[-2:], shape.depth
        if num_outputs > MAX_NARROW:
            dz = torch.mm(dy, shape.layer_of(self._vector, depth)[0])
            self._times_slope(dz, depth - 1)
            if self._written is not None:
                weight, bias = shape.layer_of(self._written, depth)
                torch.mm(dy.t(), h, out=weight)
                torch.sum(dy, 0, out=bias)
            return dz
        dz, sums = torch.empty_like(h), self._parts(width + (width + 1) * num_outputs)
        narrow.output_slopes_kernel[self._grid(width)](
            self._vector, dy, h, dz, sums, len(h), START=shape.offsets[-1], N=width, K=num_outputs,
            LEARNS=self._written is not None, **self._blocks,
        )  # fmt: skip
        self._reduce(sums, shape.offsets[-1] - width)
        return dz

    def _through_inputs(self, dz: Tensor, dx: Tensor | None, is_added: bool) -> None:
        shape, x, (num_inputs, width) = self._shape, self._given[0], self._shape.sizes[:2]
        if num_inputs > MAX_NARROW:
            if self._written is not None:
                torch.mm(dz.t(), x, out=shape.layer_of(self._written, 0)[0])
            if dx is not None:
                weight = shape.layer_of(self._vector, 0)[0]
                torch.addmm(dx, dz, weight, beta=float(is_added), out=dx)
            return
        sizes = {"N": width, "F": num_inputs, "HAS_SLOPE": shape.depth > 1}  # else it came through the outputs
        if self._written is not None:
            sums = self._parts((num_inputs + 1) * width)
            narrow.input_sums_kernel[self._grid(width)](dz, self._given[1], x, sums, len(x), **sizes, **self._blocks)
            self._reduce(sums, 0)
        if dx is not None:
            rows, columns = _whole_rows(width)
            narrow.input_slopes_kernel[(triton.cdiv(len(x), rows),)](
                self._vector, dz, self._given[1], dx, len(x), **sizes, IS_TANH=shape.is_tanh, IS_ADDED=is_added,
                BM=rows, BN=columns,
            )  # fmt: skip

    def _times_slope(self, dz: Tensor, i: int) -> None:
        """Multiply by the slope of layer i, and write the gradient of its bias."""
        sums = dz.new_empty((self._programs, dz.shape[1]))
        times_slope(dz, self._given[i + 1], self._shape.is_tanh, sums)
        self._reduce(sums, self._shape.offsets[i + 1] - dz.shape[1])

    def _parts(self, width: int) -> Tensor:
        is_learning = self._written is not None
        return self._vector.new_empty((self._programs * is_learning, width))

    def _reduce(self, sums: Tensor, start: int) -> None:
        """Add up parts to the gradient of what begins at `start` of the vector."""
        if self._written is not None:
            reduce_partials(sums, self._written[start : start + sums.shape[1]], sums[0, :0])

    def _grid(self, width: int) -> tuple[int, int]:
        return self._programs, triton.cdiv(width, SLOPE_BLOCK[1])

    @property
    def _blocks(self) -> dict[str, Any]:
        block, columns = SLOPE_BLOCK
        return {"STEPS": self._steps, "BM": block, "BN": columns, "IS_TANH": self._shape.is_tanh}
