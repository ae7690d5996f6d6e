"""An MLP as tiles: its layers padded to powers of two, as one program of a kernel holds them.

A layer's weight `[out, in]` and bias lie in the flat vector of `FlatAdam`, one layer after the other. The first layer's tile
has the bias in the column behind the weights, where the features have a one; the last layer's tile is transposed, `[in, out]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from relayrl.models.network_settings import Activation
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, MODULES

MAX_LAYERS = 5
"""Linear layers of the deepest network: four hidden layers and the outputs."""
_NETWORKS, _LAYERS = BuiltIns(MLP), BuiltIns(nn.Linear, *MODULES.values())


class Precision(Enum):
    """How the matrix units multiply float32 numbers."""

    TF32 = "tf32"
    """One product of 10-bit mantissas; about 1e-3."""
    BF16X3 = "bf16x3"
    """Three products of numbers split in two bfloat16 halves; about 1e-5."""
    NEAR_FLOAT32 = "tf32x3"
    """Three products of tf32 halves; about 1e-6."""


@dataclass(frozen=True, slots=True)
class MLPShape:
    """What kernels must know of a network besides its parameters."""

    sizes: tuple[int, ...]
    """From the inputs to the outputs."""
    is_tanh: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """Padded sizes; the inputs have room for a one."""
        first, *rest = self.sizes
        return tuple(max(16, triton.next_power_of_2(n)) for n in (first + 1, *rest))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each layer begins in the flat vector."""
        ends = [0]
        for fan_in, fan_out in pairwise(self.sizes):
            ends.append(ends[-1] + (fan_in + 1) * fan_out)
        return tuple(ends[:-1])

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self.sizes))

    def layer_of(self, vector: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Views of a layer's weight [out, in] and bias in a flat vector, or of their gradients."""
        (fan_in, fan_out), start = self.sizes[i : i + 2], self.offsets[i]
        end = start + fan_in * fan_out
        return vector[start:end].view(fan_out, fan_in), vector[end : end + fan_out]

    @property
    def depth(self) -> int:
        """Hidden layers."""
        return len(self.sizes) - 2

    @property
    def constants(self) -> dict[str, Any]:
        """Arguments of kernels."""
        return {"SIZES": self.sizes, "WIDTHS": self.widths, "OFFSETS": self.offsets, "IS_TANH": self.is_tanh}

    @property
    def prefixed_constants(self) -> dict[str, Any]:
        """The same of a kernel's second network, the critic."""
        return {"V_SIZES": self.sizes, "V_WIDTHS": self.widths, "V_OFFSETS": self.offsets, "IS_V_TANH": self.is_tanh}

    @property
    def num_weights(self) -> int:
        """Numbers in the padded tiles of all layers."""
        return sum(a * b for a, b in pairwise(self.widths))


def mlp_shape(network: nn.Module, *, learns: bool = True) -> MLPShape | None:
    """The shape of an unchanged MLP of float32 numbers, all of which learn, or none of which; None for anything else."""
    if network not in _NETWORKS or not isinstance(network, MLP):
        return None
    layers = list(network)
    kinds = [MODULES[network.activation] if i % 2 else nn.Linear for i in range(len(layers))]
    if [type(layer) for layer in layers] != kinds or any(layer not in _LAYERS for layer in layers):
        return None
    linears = network.linears()
    is_chain = all(below.out_features == above.in_features for below, above in pairwise(linears))
    if not 2 <= len(linears) <= MAX_LAYERS or not len(layers) % 2 or not is_chain:
        return None
    if not all(is_plain_float32(p, learns=learns) for layer in linears for p in (layer.weight, layer.bias)):
        return None
    sizes = linears[0].in_features, *(layer.out_features for layer in linears)
    return MLPShape(sizes, network.activation is Activation.TANH)


def is_trained_float32(parameter: Any) -> bool:
    """Whether a parameter is contiguous float32 that learns, with no hook that changes its gradient."""
    return is_plain_float32(parameter, learns=True)


def is_plain_float32(parameter: Any, *, learns: bool) -> bool:
    """The same of a parameter that learns, or of one that does not."""
    return (
        type(parameter) is nn.Parameter
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
        and parameter.requires_grad == learns
        and not parameter._backward_hooks
    )


@triton.jit
def zero_tile(R: tl.constexpr, C: tl.constexpr):
    return tl.zeros((R, C), tl.float32)


@triton.jit
def activate(x, IS_TANH: tl.constexpr):
    if IS_TANH:
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    else:
        return tl.maximum(x, 0.0)


@triton.jit
def slope(h, IS_TANH: tl.constexpr):
    """The activation's derivative, from what it gave."""
    if IS_TANH:
        return 1.0 - h * h
    else:
        return tl.where(h > 0.0, 1.0, 0.0)


@triton.jit
def tile_places(
    start, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr
):
    """Where a layer's tile lies in the flat vector. KIND 0: the first, with its bias; 1: in between; 2: last, transposed."""
    r = tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    if KIND == 0:
        return tl.where(c < FAN_IN, start + r * FAN_IN + c, start + FAN_OUT * FAN_IN + r), (r < FAN_OUT) & (c <= FAN_IN)
    elif KIND == 1:
        return start + r * FAN_IN + c, (r < FAN_OUT) & (c < FAN_IN)
    else:
        return start + c * FAN_IN + r, (r < FAN_IN) & (c < FAN_OUT)


@triton.jit
def load_tile(
    P, start, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr
):
    at, is_inside = tile_places(start, FAN_IN, FAN_OUT, R, C, KIND)
    return tl.load(P + at, mask=is_inside, other=0.0)


@triton.jit
def load_bias(P, start, FAN_IN: tl.constexpr, FAN_OUT: tl.constexpr, W: tl.constexpr):
    i = tl.arange(0, W)
    return tl.load(P + start + FAN_OUT * FAN_IN + i, mask=i < FAN_OUT, other=0.0)


@triton.jit
def load_layers(P, SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr):
    """The tiles of all layers, and the biases of all but the first (whose place holds another's)."""
    DEPTH: tl.constexpr = len(SIZES) - 2
    weights = (load_tile(P, OFFSETS[0], SIZES[0], SIZES[1], WIDTHS[1], WIDTHS[0], 0),)
    biases = (load_bias(P, OFFSETS[0], SIZES[0], SIZES[1], WIDTHS[1]),)
    for i in tl.static_range(1, DEPTH):
        weights = weights + (load_tile(P, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1], WIDTHS[i], 1),)
        biases = biases + (load_bias(P, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1]),)
    last = load_tile(P, OFFSETS[DEPTH], SIZES[DEPTH], SIZES[DEPTH + 1], WIDTHS[DEPTH], WIDTHS[DEPTH + 1], 2)
    return weights + (last,), biases + (
        load_bias(P, OFFSETS[DEPTH], SIZES[DEPTH], SIZES[DEPTH + 1], WIDTHS[DEPTH + 1]),
    )


@triton.jit
def load_features(X, row, is_row, FAN_IN: tl.constexpr, W: tl.constexpr):
    """[rows, W] features, a one behind them, zeros."""
    c = tl.arange(0, W)[None, :]
    x = tl.load(X + row[:, None] * FAN_IN + c, mask=is_row[:, None] & (c < FAN_IN), other=0.0)
    return tl.where(c == FAN_IN, 1.0, x)


@triton.jit
def forward(x, weights, biases, DEPTH: tl.constexpr, IS_TANH: tl.constexpr, PRECISION: tl.constexpr):
    """The inputs and what every layer gives: (x, h₁, …, h_DEPTH, y)."""
    h = activate(tl.dot(x, tl.trans(weights[0]), input_precision=PRECISION), IS_TANH)
    given = (x, h)
    for i in tl.static_range(1, DEPTH):
        z = tl.dot(given[i], tl.trans(weights[i]), input_precision=PRECISION) + biases[i][None, :]
        given = given + (activate(z, IS_TANH),)
    y = tl.dot(given[DEPTH], weights[DEPTH], input_precision=PRECISION) + biases[DEPTH][None, :]
    return given + (y,)
