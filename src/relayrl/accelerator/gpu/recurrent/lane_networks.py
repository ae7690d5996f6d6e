"""A recurrent network whose parameters kernels know by their places in the flat vector, and its weights in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from relayrl.accelerator.gpu.mlp_tiles import is_trained_float32
from relayrl.accelerator.gpu.recurrent.fused_cells import is_known_cell
from relayrl.models.network_settings import Activation, MemoryKind
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, MODULES
from relayrl.models.networks.recurrent_network import RecurrentNetwork

MAX_UNITS = 128
"""Of a memory whose weights one program holds on its chip."""
MAX_LANE_OUTPUTS = 16
_NETWORKS, _TRUNKS = BuiltIns(RecurrentNetwork), BuiltIns(MLP)
_LAYERS = BuiltIns(nn.Linear, *MODULES.values())


@dataclass(frozen=True, slots=True)
class LaneShape:
    """A GRU of `units` behind layers of `sizes`, from the features to what the cell sees, each with an activation; outputs
    behind it. Parameters lie one behind the other: layers, the cell's weights and biases, outputs."""

    sizes: tuple[int, ...]
    units: int
    num_outputs: int
    is_tanh: bool

    @property
    def num_inputs(self) -> int:
        """Columns of features with a one behind them, in whole vectors of half numbers."""
        return -(-(self.sizes[0] + 1) // 8) * 8

    @property
    def outputs_at(self) -> int:
        """Where the weight of the outputs begins."""
        return self.offsets[-1] + 3 * self.units * (self.sizes[-1] + self.units + 2)

    @property
    def biases_at(self) -> int:
        """Where their bias begins, behind which lie the policy's own log deviations."""
        return self.outputs_at + self.num_outputs * self.units

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each layer begins, and the cell."""
        return (0, *accumulate((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self.sizes)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Padded sizes; the inputs have room for a one."""
        first, *rest = self.sizes
        return tuple(max(16, 1 << (n - 1).bit_length()) for n in (first + 1, *rest))

    @property
    def memory_width(self) -> int:
        """Padded units of the memory."""
        return max(16, 1 << (self.units - 1).bit_length())

    @property
    def is_narrow(self) -> bool:
        """Whether one program passes through all layers."""
        return max(*self.widths, self.memory_width) <= MAX_UNITS

    def layers(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Weight [out, in] and bias of each layer."""
        for start, (fan_in, fan_out) in zip(self.offsets, pairwise(self.sizes), strict=False):
            end = start + fan_in * fan_out
            yield vector[start:end].view(fan_out, fan_in), vector[end : end + fan_out]

    def cell(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights [3 H, in] and [3 H, H] and their biases, in torch's order."""
        rows, fan_in = 3 * self.units, self.sizes[-1]
        sizes = rows * fan_in, rows * self.units, rows, rows
        start = self.outputs_at - sum(sizes)
        w, u, b, c = vector[start : self.outputs_at].split(sizes)  # type: ignore[no-untyped-call]
        return w.view(rows, fan_in), u.view(rows, self.units), b, c

    def outputs(self, vector: Tensor) -> Tensor:
        """[O, H]."""
        return vector[self.outputs_at : self.biases_at].view(self.num_outputs, self.units)


def lane_shape(network: nn.Module) -> LaneShape | None:
    """The shape of an unchanged GRU of few units behind an unchanged MLP; None for anything else."""
    if network not in _NETWORKS or not isinstance(network, RecurrentNetwork) or network.trunk not in _TRUNKS:
        return None
    trunk, cell, output = network.trunk, network.cell, network.output
    if not isinstance(trunk, MLP) or not is_known_cell(cell) or cell.kind is not MemoryKind.GRU:
        return None
    layers, activation = [*trunk, network.activation], MODULES[trunk.activation]
    kinds = [activation if i % 2 else nn.Linear for i in range(len(layers))]
    linears = [*trunk.linears(), output]
    is_plain = [type(layer) for layer in layers] == kinds and all(layer in _LAYERS for layer in (*layers, output))
    if not is_plain or not all(is_trained_float32(p) for layer in linears for p in (layer.weight, layer.bias)):
        return None
    sizes = (*(layer.in_features for layer in linears[:-1]), linears[-2].out_features)
    is_chain = all(b.in_features == a.out_features for a, b in pairwise(linears[:-1]))
    is_chain = is_chain and cell.layer.input_size == sizes[-1] and output.in_features == cell.num_outputs
    if not is_chain or cell.num_outputs > MAX_UNITS or output.out_features > MAX_LANE_OUTPUTS:
        return None
    return LaneShape(sizes, cell.num_outputs, output.out_features, trunk.activation is Activation.TANH)


@dataclass(frozen=True, slots=True)
class HalfWeights:
    """What is multiplied of a network."""

    layers: list[tuple[Tensor, Tensor]]
    """Weight and bias; the first weight has zeros behind it, as many columns as there are inputs."""
    inputs: tuple[Tensor, Tensor]
    """The cell's weight [3 H, in] of its inputs, by gates r, z, n, and its biases, for r and z with those of the memory."""
    turned_inputs: Tensor
    """The weight by gates n, r, z."""
    vector: Tensor
    """All parameters before the outputs' bias."""


@torch.no_grad()
def half_weights(shape: LaneShape, vector: Tensor) -> HalfWeights:
    """A network's weights in half precision."""
    half, units = vector[: shape.biases_at].to(torch.float16), shape.units
    (weight, first_bias), *layers = shape.layers(half)
    padded = nn.functional.pad(weight, (0, shape.num_inputs - weight.shape[1]))
    inputs, *_ = shape.cell(half)
    *_, input_bias, recurrent_bias = shape.cell(vector)
    bias = (input_bias + nn.functional.pad(recurrent_bias[: 2 * units], (0, units))).to(torch.float16)
    turned = torch.cat([inputs[2 * units :], inputs[: 2 * units]])
    return HalfWeights([(padded, first_bias), *layers], (inputs, bias), turned, half)
