"""Convolutions with relu behind each, as one function of autograd by Triton kernels: images in, their features out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.clipped_adam import reduce_partials
from relayrl.accelerator.gpu.convolutions.convolution_kernels import (
    forward_kernel,
    input_kernel,
    largest_kernel,
    scale_kernel,
    slope_kernel,
    weight_kernel,
)
from relayrl.accelerator.gpu.gradient_terms import MULTIPROCESSORS

FORWARD, INPUT, WEIGHT = (
    {"BM": 128, "num_warps": 4, "num_stages": 3},
    {"BM": 64, "num_warps": 4, "num_stages": 3},
    {"BK": 128, "BR": 64, "num_warps": 4, "num_stages": 3},
)
"""Blocks that measured fastest on an H200, of Nature's layers."""
MAX_BLOCK, MAX_COLUMNS = 64, 128
MAX_FILTERS = 128
"""What one block holds."""
BYTES_BLOCK, BYTES_STAGES = 32, {"num_stages": 2}
"""Numbers of a patch at a time, and stages of the weight's gradient, where they are bytes: those pass through registers."""
NUMBERS = 4096
WEIGHT_PROGRAMS = 4 * MULTIPROCESSORS


@dataclass(frozen=True, slots=True)
class Convolution:
    """The sizes of a layer: images of `height` × `width` with `channels`, and `filters` of `size` × `size` every `stride`."""

    height: int
    width: int
    channels: int
    filters: int
    size: int
    stride: int

    @property
    def places(self) -> tuple[int, int]:
        """Height and width of the output."""
        return (self.height - self.size) // self.stride + 1, (self.width - self.size) // self.stride + 1

    @property
    def num_places(self) -> int:
        """Of one image's output."""
        return self.places[0] * self.places[1]

    @property
    def num_outputs(self) -> int:
        """Numbers that one image gives."""
        return self.num_places * self.filters

    @property
    def patch(self) -> int:
        """Numbers that a filter sees."""
        return self.size * self.size * self.channels

    @property
    def constants(self) -> dict[str, int]:
        """Arguments of kernels."""
        places = {"OY": self.places[0], "OX": self.places[1]}
        filters = {"KH": self.size, "KW": self.size, "S": self.stride, "F": self.filters}
        return {"H": self.height, "W": self.width, "C": self.channels, **filters, **places}


class Convolved(torch.autograd.Function):
    """[M, OY · OX · F] of images [M, H, W, C] of bytes times `scale`, and the layers' weights and biases by turns."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, layers: Sequence[Convolution], scale: float, *parameters: Tensor) -> Tensor:
        weights = [weight.permute(0, 2, 3, 1).to(torch.float16).contiguous() for weight in parameters[::2]]
        seen = [images]
        for i, layer in enumerate(layers):
            dtype = torch.float32 if i == len(layers) - 1 else torch.float16
            out = torch.empty((len(images), *layer.places, layer.filters), dtype=dtype, device=images.device)
            convolve(layer, seen[-1], (weights[i], parameters[2 * i + 1]), out, 1.0 if i else scale)
            seen.append(out)
        ctx.save_for_backward(*seen, *weights)
        ctx.layers, ctx.scale = layers, scale
        return seen[-1].view(len(images), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layers = ctx.layers
        seen, weights = ctx.saved_tensors[: len(layers) + 1], ctx.saved_tensors[len(layers) + 1 :]
        slopes = last_slopes(gradients[0].contiguous(), seen[-1])
        found: list[Tensor] = []
        for i in range(len(layers) - 1, -1, -1):
            found = [*parameter_gradients(layers[i], seen[i], slopes, 1.0 if i else ctx.scale), *found]
            if i:
                slopes = slopes_below(layers[i], seen[i], weights[i], slopes)
        return None, None, None, *found


@dataclass(frozen=True, slots=True)
class Slopes:
    """The loss's gradient by what a relu was taken of: `d` is `scale[0]` times as large, and `scale[1]` the inverse of that;
    `maxima` are the largest numbers, or bounds of them, of parts of it."""

    d: Tensor
    scale: Tensor
    maxima: Tensor


def convolve(layer: Convolution, x: Tensor, parameters: tuple[Tensor, Tensor], out: Tensor, scale: float) -> None:
    """Write into `out` [M, OY, OX, F] what a layer's relu gives of `x` times `scale`."""
    num_rows = len(x) * layer.num_places
    block = min(BYTES_BLOCK if x.dtype == torch.uint8 else MAX_BLOCK, padded(layer.patch))
    forward_kernel[(triton.cdiv(num_rows, FORWARD["BM"]),)](
        x, *parameters, out, num_rows, scale, **layer.constants, BN=padded(layer.filters), BK=block, **FORWARD
    )


def last_slopes(given: Tensor, out: Tensor) -> Slopes:
    """Of the last layer, by whose output `out` the loss has the gradient `given`."""
    d, scale = torch.empty(out.shape, dtype=torch.float16, device=out.device), torch.empty(2, device=out.device)
    blocks = triton.cdiv(out.numel(), NUMBERS)
    maxima = torch.empty(blocks, device=out.device)
    largest_kernel[(blocks,)](given, maxima, out.numel(), BLOCK=NUMBERS)
    _write_scale(scale, maxima)
    slope_kernel[(blocks,)](given, out, scale, d, out.numel(), BLOCK=NUMBERS)
    return Slopes(d, scale, maxima)


def parameter_gradients(layer: Convolution, x: Tensor, slopes: Slopes, x_scale: float) -> tuple[Tensor, Tensor]:
    """By weight [F, C, K, K] and bias [F]; partial sums of fixed rows are added up in their order."""
    num_rows, patch, filters = len(x) * layer.num_places, layer.patch, layer.filters
    blocks, steps_of_all = triton.cdiv(patch, WEIGHT["BK"]), triton.cdiv(num_rows, WEIGHT["BR"])
    steps = triton.cdiv(steps_of_all, max(1, WEIGHT_PROGRAMS // blocks))
    parts = torch.empty((triton.cdiv(steps_of_all, steps), filters * (patch + 1)), device=x.device)
    options = WEIGHT | (BYTES_STAGES if x.dtype == torch.uint8 else {})
    weight_kernel[(blocks, len(parts))](
        x,
        slopes.d,
        slopes.scale,
        parts,
        num_rows,
        x_scale,
        STEPS=steps,
        **layer.constants,
        BN=padded(filters),
        **options,
    )
    weight, bias = torch.empty(filters * patch, device=x.device), torch.empty(filters, device=x.device)
    reduce_partials(parts, weight, bias)
    return weight.view(filters, layer.size, layer.size, layer.channels).permute(0, 3, 1, 2), bias


def slopes_below(layer: Convolution, x: Tensor, weight: Tensor, slopes: Slopes) -> Slopes:
    """Of the layer before, which gave `x`."""
    d, scale = torch.empty(x.shape, dtype=torch.float16, device=x.device), torch.empty(2, device=x.device)
    _write_scale(scale, slopes.maxima, weight)
    squares = triton.cdiv(layer.height, layer.stride) * triton.cdiv(layer.width, layer.stride)
    columns = layer.stride * layer.stride * layer.channels
    num_rows, block = len(x) * squares, min(MAX_COLUMNS, padded(columns))
    grid = triton.cdiv(num_rows, INPUT["BM"]), triton.cdiv(columns, block)
    maxima = torch.empty(grid[0] * grid[1], device=x.device)
    input_kernel[grid](
        slopes.d, weight, x, slopes.scale, scale, d, maxima, num_rows, **layer.constants, BN=block,
        BK=min(MAX_BLOCK, padded(layer.filters)), **INPUT,
    )  # fmt: skip
    return Slopes(d, scale, maxima)


def _write_scale(scale: Tensor, maxima: Tensor, weight: Tensor | None = None) -> None:
    """For what is as large as `maxima` at most, passed back through a layer's `weight` [F, K, K, C] where one is given."""
    filters, size, channels = (1, 0, 1) if weight is None else (len(weight), weight[0].numel(), weight.shape[-1])
    scale_kernel[(1,)](
        maxima, maxima.numel(), scale if weight is None else weight, scale, F=filters, K=size, C=channels,
        STEPS=triton.cdiv(maxima.numel(), NUMBERS), BLOCK=NUMBERS, ROWS=max(1, NUMBERS // padded(channels)),
        BC=padded(channels), num_warps=8,
    )  # fmt: skip


def padded(n: int) -> int:
    """The side of a block that holds so many numbers."""
    return max(16, int(triton.next_power_of_2(n)))
