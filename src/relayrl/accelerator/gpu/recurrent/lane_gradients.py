"""Gradients of recurrent actor and critic over a minibatch of lanes, in half precision: for runs that allow products in tf32.

Layers, projections and sums over rows are cuBLAS's products of float16 numbers, which have tf32's mantissa; their sums are
float32. Lanes are read by their numbers, so that a minibatch is nowhere copied but for what the first layer sees. Gradients by
the outputs are multiplied by a power of two first, chosen on the device so that the largest one is about `TOP`: small ones
stay numbers of half precision, and the sums that a gradient becomes on its way back have room above. Losses, their gradients,
sums of biases and Adam stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import triton
from torch import Tensor, nn

from relayrl.accelerator.gpu.clipped_adam import reduce_partials
from relayrl.accelerator.gpu.gradient_terms import (
    MULTIPROCESSORS,
    NUM_POLICY_SUMS,
    NUM_VALUE_SUMS,
    HeadShape,
    PolicyTerms,
    ValueTerms,
)
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent.front_kernels import (
    LARGEST,
    front_kernel,
    half_back_kernel,
    resident_back_kernel,
    seen_kernel,
)
from relayrl.accelerator.gpu.recurrent.lane_networks import MAX_UNITS, HalfWeights, LaneShape, half_weights
from relayrl.accelerator.gpu.recurrent.resident_gru import gru_backward_kernel, gru_forward_kernel
from relayrl.accelerator.gpu.wide import layered_gradients as layered
from relayrl.models.networks.memory_cell import MemoryCell, MemoryStarts, UnrolledLanes

TOP = 16.0
"""About the largest gradient by an output, after it was multiplied."""
OUTPUT_WIDTH = 16
LOSS_BLOCK = SEEN_BLOCK = 256
FRONT_BLOCK = BACK_BLOCK = 128
RESIDENT_BLOCK = 64


def gru_blocks(units: int, *, is_backward: bool) -> dict[str, Any]:
    """Launch constants of the time loops."""
    width = max(16, triton.next_power_of_2(units))
    return {"H": units, "W": width, "BL": 16, "num_warps": 4 if is_backward else 8, "num_stages": 1}


@dataclass(frozen=True, slots=True)
class LaneNetwork:
    """One network and what it sees: its parameters and gradient, features [T · L, F] of all lanes and their starts."""

    shape: LaneShape
    vector: Tensor
    gradient: Tensor
    features: Tensor
    starts: MemoryStarts


class _Layers:
    """What the layers of one network give for a minibatch, and the gradients by it."""

    def __init__(self, shape: LaneShape, num_rows: int, device: torch.device) -> None:
        self.shape, self.num_rows = shape, num_rows

        def half(width: int) -> Tensor:
            return torch.empty((num_rows, width), dtype=torch.float16, device=device)

        self.seen = half(shape.num_inputs)
        flat = torch.empty(num_rows * sum(shape.sizes[1:]), dtype=torch.float16, device=device)
        ends = [num_rows * end for end in accumulate(shape.sizes[1:])]
        self.hidden = [flat[a:b].view(num_rows, -1) for a, b in pairwise([0, *ends])]
        self._dz = [half(size) for size in shape.sizes[1:]]
        self.dy = torch.empty((num_rows, OUTPUT_WIDTH), device=device)
        self.half_dy = half(OUTPUT_WIDTH)
        programs = 2 * MULTIPROCESSORS if shape.is_narrow else triton.cdiv(num_rows, BACK_BLOCK)
        self._bias_sums = [torch.zeros((programs, size), device=device) for size in shape.sizes[1:]]
        self.loss_programs = triton.cdiv(num_rows, LOSS_BLOCK)
        self._nothing = torch.zeros(0, device=device)

    def project(self, features: Tensor, rows: Tensor, weights: HalfWeights, out: Tensor) -> None:
        """Write the cell's projected inputs [m, 3 H] of features' rows to `out`."""
        shape = self.shape
        if shape.is_narrow:
            programs, steps = _shared(self.num_rows, FRONT_BLOCK, MULTIPROCESSORS)
            front_kernel[(programs,)](
                features, rows, weights.vector, weights.inputs[1], self.seen, self.hidden[0], out, self.num_rows,
                SIZES=shape.sizes, WIDTHS=shape.widths, OFFSETS=shape.offsets[:-1], STRIDE=shape.num_inputs,
                IS_TANH=shape.is_tanh, H=shape.units, W=shape.memory_width, CELL_AT=shape.offsets[-1], STEPS=steps,
                BM=FRONT_BLOCK, num_warps=8, num_stages=1,
            )  # fmt: skip
        else:
            self._project_by_library(features, rows, weights, out)

    def _project_by_library(self, features: Tensor, rows: Tensor, weights: HalfWeights, out: Tensor) -> None:
        shape = self.shape
        seen_kernel[(triton.cdiv(self.num_rows, SEEN_BLOCK),)](
            features, rows, self.seen, self.num_rows, F=shape.sizes[0], STRIDE=shape.num_inputs,
            W=triton.next_power_of_2(shape.num_inputs), BLOCK=SEEN_BLOCK, num_warps=8,
        )  # fmt: skip
        x = self.seen
        for layer, hidden in zip(weights.layers, self.hidden, strict=True):
            x = _half_layer(layer, x, shape.is_tanh, hidden)
        weight, bias = weights.inputs
        torch.addmm(bias, x, weight.t(), out=out)

    def differentiate(self, dx: Tensor, weights: HalfWeights, gradient: Tensor) -> None:
        """Write the layers' gradients from those by the projected inputs, `dx` [m, 3 H] by gates n, r, z."""
        above, weight_above = dx, weights.turned_inputs
        of_layers = list(self.shape.layers(gradient))
        for i in range(len(self.hidden) - 1, -1, -1):
            dz, (d_weight, d_bias) = self._dz[i], of_layers[i]
            reduce_partials(self._back(i, above, weight_above), d_bias, self._nothing)
            if i > 0:
                sum_over_rows(dz, self.hidden[i - 1], d_weight)
            else:
                found = torch.empty((dz.shape[1], self.seen.shape[1]), device=dz.device)
                d_weight.copy_(sum_over_rows(dz, self.seen, found)[:, : d_weight.shape[1]])
            above, weight_above = dz, weights.layers[i][0]

    def _back(self, i: int, above: Tensor, weight: Tensor) -> Tensor:
        """Write the gradient by what the i-th layer adds up, from that of the `weight` above it; gives parts of its sums."""
        dz, hidden, (fan_out, fan_in) = self._dz[i], self.hidden[i], weight.shape
        width, launch = max(16, triton.next_power_of_2(fan_in)), {"num_warps": 4, "num_stages": 2}
        columns = weight, above, hidden, dz
        sizes = {"FAN_IN": fan_in, "FAN_OUT": fan_out, "IS_TANH": self.shape.is_tanh}
        if self.shape.is_narrow:  # of a weight of three gates a multiprocessor holds one, of another two
            most = MULTIPROCESSORS if fan_out > MAX_UNITS else 2 * MULTIPROCESSORS
            programs, steps = _shared(self.num_rows, RESIDENT_BLOCK, most)
            sums = self._bias_sums[i][:programs]
            resident_back_kernel[(programs,)](
                *columns,
                sums,
                self.num_rows,
                above.stride(0),
                **sizes,
                STEPS=steps,
                BM=RESIDENT_BLOCK,
                BN=width,
                BK=128,
                **launch,
            )
            return sums
        sums, block = self._bias_sums[i], min(128, width)
        half_back_kernel[(len(sums), triton.cdiv(fan_in, block))](
            *columns,
            sums,
            self.num_rows,
            above.stride(0),
            **sizes,
            BM=BACK_BLOCK,
            BN=block,
            BK=64,
            num_warps=8,
            num_stages=3,
        )
        return sums

    @property
    def last_layer(self) -> dict[str, Any]:
        """Launch constants of the losses."""
        shape = self.shape
        return {
            "START": shape.outputs_at, "FAN_IN": shape.units, "K": shape.num_outputs, "W": OUTPUT_WIDTH,
            "BM": LOSS_BLOCK, "BK": 32, "PRECISION": Precision.TF32.value, "num_warps": 8,
        }  # fmt: skip


class LanePlan:
    """Memory and launches for minibatches of so many steps and lanes."""

    def __init__(
        self, shapes: tuple[LaneShape, LaneShape], num_extra: int, num_steps: int, num_lanes: int, device: torch.device
    ) -> None:
        """`num_extra` parameters lie behind the policy's outputs."""
        self.num_steps, self.num_lanes = num_steps, num_lanes
        self._layers = [_Layers(shape, num_steps * num_lanes, device) for shape in shapes]
        units, rows = shapes[0].units, num_steps * num_lanes

        def half(width: int) -> Tensor:
            return torch.empty((2, rows, width), dtype=torch.float16, device=device)

        self._projected, self._before, self._out = half(3 * units), half(units), half(units)
        self._gates, self._dx = half(4 * units), half(4 * units)
        self._last = torch.empty((2, num_lanes, units), device=device)
        programs = self._layers[0].loss_programs
        width = shapes[0].num_outputs + num_extra + NUM_POLICY_SUMS
        self._policy_sums = torch.zeros((programs, width), device=device)
        self._value_sums = torch.zeros((programs, 1 + NUM_VALUE_SUMS), device=device)
        self._numbers = torch.zeros(NUM_POLICY_SUMS + NUM_VALUE_SUMS, device=device)

    @torch.no_grad()
    def gradients(
        self,
        policy: tuple[LaneNetwork, HeadShape, PolicyTerms] | None,
        value: tuple[LaneNetwork, ValueTerms] | None,
        where: Tensor,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Write the gradients of one network or both; gives the policy's loss, KL, entropy and share of clipped rows [4], and
        the value's loss [1]. `where` [l] are the lanes."""
        networks = [part[0] for part in (policy, value) if part is not None]
        layers = [own for own, part in zip(self._layers, (policy, value), strict=True) if part is not None]
        num_all = networks[0].starts.slot.shape[1]
        steps = torch.arange(self.num_steps, device=where.device)
        rows = (steps[:, None] * num_all + where).flatten()
        weights = [half_weights(network.shape, network.vector) for network in networks]
        cells = [network.shape.cell(network.vector) for network in networks]
        recurrent = torch.stack([cell[1] for cell in cells]).to(torch.float16)
        for own, network, half, out in zip(layers, networks, weights, self._projected, strict=False):
            own.project(network.features, rows, half, out)
        self._unroll(networks, recurrent, torch.stack([cell[3][-cell[3].shape[0] // 3 :] for cell in cells]), where)
        if policy is not None:
            self._policy_loss(*policy, rows)
        if value is not None:
            self._value_loss(*value, rows, self._out[len(networks) - 1])
        scale = self._scaled(layers)
        sums = self._unroll_back(networks, layers, recurrent, where)
        for i, (own, network, half) in enumerate(zip(layers, networks, weights, strict=True)):
            self._differentiate(i, own, network, half, sums[i])
            network.gradient[: network.shape.biases_at].div_(scale[i])
        of_policy, of_value = self._numbers[:NUM_POLICY_SUMS], self._numbers[NUM_POLICY_SUMS:]
        if policy is not None:
            reduce_partials(self._policy_sums, networks[0].gradient[networks[0].shape.biases_at :], of_policy)
        if value is not None:
            reduce_partials(self._value_sums, networks[-1].gradient[-1:], of_value)
        return None if policy is None else of_policy, None if value is None else of_value

    def _unroll(self, networks: list[LaneNetwork], recurrent: Tensor, bias: Tensor, where: Tensor) -> None:
        first, last = networks[0], networks[-1]
        blocks = gru_blocks(first.shape.units, is_backward=False)
        gru_forward_kernel[(triton.cdiv(self.num_lanes, blocks["BL"]), len(networks))](
            self._projected, recurrent, bias, first.starts.slot, last.starts.slot, first.starts.given, last.starts.given,
            where, self._before, self._out, self._last, self._gates, self.num_lanes, first.starts.slot.shape[1],
            T=self.num_steps, KEEPS=True, **blocks,
        )  # fmt: skip

    def _unroll_back(
        self, networks: list[LaneNetwork], layers: list[_Layers], recurrent: Tensor, where: Tensor
    ) -> Tensor:
        """[networks, 4 H] sums over rows of what is written to `_dx`."""
        first, last = networks[0], networks[-1]
        blocks, units = gru_blocks(first.shape.units, is_backward=True), first.shape.units
        programs = triton.cdiv(self.num_lanes, blocks["BL"])
        sums = torch.empty((len(networks), programs, 4 * units), device=where.device)
        heads = torch.zeros((len(networks), OUTPUT_WIDTH, units), dtype=torch.float16, device=where.device)
        for head, network in zip(heads, networks, strict=True):
            head[: network.shape.num_outputs].copy_(network.shape.outputs(network.vector))
        gru_backward_kernel[(programs, len(networks))](
            recurrent, heads, first.starts.slot, last.starts.slot, where, self._before, self._gates, layers[0].half_dy,
            layers[-1].half_dy, self._dx, sums, self.num_lanes, first.starts.slot.shape[1], T=self.num_steps,
            BY=OUTPUT_WIDTH, **blocks,
        )  # fmt: skip
        return sums.sum(1)

    def _policy_loss(self, network: LaneNetwork, head: HeadShape, terms: PolicyTerms, rows: Tensor) -> None:
        own = self._layers[0]
        layered.policy_loss_kernel[(own.loss_programs,)](
            network.vector, self._out[0], rows, *terms.arguments, own.dy, self._policy_sums, own.num_rows,
            *terms.numbers, **own.last_layer, **head.constants, **terms.constants,
        )  # fmt: skip

    def _value_loss(self, network: LaneNetwork, terms: ValueTerms, rows: Tensor, seen: Tensor) -> None:
        own = self._layers[1]
        layered.value_loss_kernel[(own.loss_programs,)](
            network.vector, seen, rows, terms.old_value, terms.target, own.dy, self._value_sums, own.num_rows,
            terms.clip or 0.0, IS_CLIPPED=terms.clip is not None, **own.last_layer,
        )  # fmt: skip

    def _scaled(self, layers: list[_Layers]) -> Tensor:
        """[networks] a power of two for each, by which gradients in half precision are multiplied."""
        largest = torch.stack([torch.linalg.vector_norm(own.dy, float("inf")) for own in layers])
        scale = torch.exp2(torch.floor(torch.log2(TOP / largest.clamp(min=1e-30))))
        for i, own in enumerate(layers):
            torch.mul(own.dy, scale[i], out=own.half_dy)
        return scale

    def _differentiate(self, i: int, own: _Layers, network: LaneNetwork, half: HalfWeights, sums: Tensor) -> None:
        """Write the i-th network's gradient, but for the outputs' bias."""
        shape, units, gradient = network.shape, network.shape.units, network.gradient
        d_input, d_recurrent, d_input_bias, d_recurrent_bias = shape.cell(gradient)
        dx, du = self._dx[i, :, : 3 * units], self._dx[i, :, units:]
        turned = sum_over_rows(dx, own.hidden[-1], torch.empty_like(d_input))
        _to_torchs_order(turned, d_input, units)
        _to_torchs_order(sums[: 3 * units], d_input_bias, units)
        sum_over_rows(du, self._before[i], d_recurrent)
        d_recurrent_bias.copy_(sums[units:])
        outputs = torch.empty((OUTPUT_WIDTH, units), device=gradient.device)
        shape.outputs(gradient).copy_(sum_over_rows(own.half_dy, self._out[i], outputs)[: shape.num_outputs])
        own.differentiate(dx, half, gradient)


def _shared(num_rows: int, block: int, most: int) -> tuple[int, int]:
    """Programs, at most so many, and blocks of rows that each takes."""
    num_blocks = triton.cdiv(num_rows, block)
    steps = triton.cdiv(num_blocks, most)
    return triton.cdiv(num_blocks, steps), steps


def _half_layer(layer: tuple[Tensor, Tensor], x: Tensor, is_tanh: bool, out: Tensor) -> Tensor:
    weight, bias = layer
    if is_tanh:
        torch.addmm(bias, x, weight.t(), out=out).tanh_()
    else:  # bias and relu are the product's epilogue
        torch.ops.aten._addmm_activation.out(bias, x, weight.t(), out=out)
    return out


@torch.no_grad()
def half_hidden(shape: LaneShape, vector: Tensor, seen: Tensor) -> Tensor:
    """[m, I] what a cell sees of features `seen` [m, F], without a gradient."""
    x = torch.zeros((len(seen), shape.num_inputs), dtype=torch.float16, device=seen.device)
    x[:, : seen.shape[1]].copy_(seen)
    x.clamp_(-LARGEST.value, LARGEST.value)
    for layer in half_weights(shape, vector).layers:
        x = _half_layer(layer, x, shape.is_tanh, x.new_empty((len(x), len(layer[1]))))
    return x


@torch.no_grad()
def half_unroll(cell: MemoryCell, inputs: Tensor, starts: MemoryStarts) -> UnrolledLanes:
    """`cell.unroll_lanes(inputs, starts)` of a GRU of few units, without a gradient."""
    (num_steps, num_lanes), units = inputs.shape[:2], cell.num_outputs
    weight, recurrent, input_bias, bias = cell.layer.all_weights[0]
    both = input_bias + nn.functional.pad(bias[: 2 * units], (0, units))
    half = [tensor.to(torch.float16) for tensor in (both, inputs.flatten(0, 1), weight, recurrent)]
    projected = torch.addmm(half[0], half[1], half[2].t())
    before, out = half[1].new_empty((2, num_steps, num_lanes, units))
    last = bias.new_empty((num_lanes, units))
    slot, given = starts.slot.contiguous(), starts.given.contiguous()
    blocks = gru_blocks(units, is_backward=False)
    gru_forward_kernel[(triton.cdiv(num_lanes, blocks["BL"]), 1)](
        projected, half[3], bias[2 * units :], slot, slot, given, given, torch.arange(num_lanes, device=slot.device),
        before, out, last, out, num_lanes, num_lanes, T=num_steps, KEEPS=False, **blocks,
    )  # fmt: skip
    return UnrolledLanes(out.float(), before.float(), last)


def sum_over_rows(dz: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """`out` = dzᵀ x in float32 of half columns."""
    if dz.is_cuda:
        torch.ops.aten.mm.dtype_out(dz.t(), x, torch.float32, out=out)
    else:
        torch.mm(dz.float().t(), x.float(), out=out)
    return out


def _to_torchs_order(turned: Tensor, out: Tensor, units: int) -> None:
    """Rows of gates n, r, z to those of r, z, n."""
    out[: 2 * units].copy_(turned[units:])
    out[2 * units :].copy_(turned[:units])
