"""Gradients of a wide MLP, layer by layer: the products, the fused loss between them, and the memory for what layers give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.clipped_adam import reduce_partials
from relayrl.accelerator.gpu.gradient_terms import (
    MULTIPROCESSORS,
    NUM_POLICY_SUMS,
    NUM_VALUE_SUMS,
    HeadShape,
    Network,
    PolicyTerms,
    ValueTerms,
)
from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision
from relayrl.accelerator.gpu.wide import layered_gradients as layered
from relayrl.accelerator.gpu.wide.library_layers import hidden_layer, row_shares, times_slope

BY_LIBRARY = frozenset({Precision.TF32, Precision.NEAR_FLOAT32})
"""Precisions whose products are cuBLAS's, in tf32 or float32."""


class LayeredNetwork:
    """One of the networks, with the memory for what its layers give.

    Losses are kernels. Products are cuBLAS's, whose rate the kernels do not reach, but for numbers split in bfloat16 halves."""

    def __init__(
        self, shape: MLPShape, num_extra: int, num_rows: int, precision: Precision, device: torch.device
    ) -> None:
        self.shape, self.num_rows, self.precision = shape, num_rows, precision
        self._hidden = [torch.empty((num_rows, size), device=device) for size in shape.sizes[1:-1]]
        self._dz = [torch.empty((num_rows, size), device=device) for size in shape.sizes[1:-1]]
        self._dy = torch.empty((num_rows, shape.widths[-1]), device=device)
        self._loss_block = 64
        self._loss_programs = triton.cdiv(num_rows, self._loss_block)
        num_outputs = shape.sizes[-1]
        self._loss_sums = torch.zeros((self._loss_programs, num_outputs + num_extra + NUM_POLICY_SUMS), device=device)
        self._value_sums = torch.zeros((self._loss_programs, 1 + NUM_VALUE_SUMS), device=device)
        self._bias_sums = [torch.zeros((row_shares(num_rows)[0], size), device=device) for size in shape.sizes[1:-1]]
        self._sums = torch.zeros(NUM_POLICY_SUMS, device=device)
        self._nothing = torch.zeros(0, device=device)
        self._partials = self._nothing
        if precision not in BY_LIBRARY:
            self._partials = torch.zeros((self._num_splits(), shape.num_parameters), device=device)
        self._by_library = precision in BY_LIBRARY
        self._seen = torch.empty((num_rows if self._by_library else 0, shape.sizes[0]), device=device)

    def _num_splits(self) -> int:
        """Shares of the rows, so that the largest weight's tiles fill the GPU about twice."""
        tiles = max(triton.cdiv(a, 128) * triton.cdiv(b, 128) for a, b in pairwise(self.shape.sizes))
        return int(max(1, min(64, 2 * MULTIPROCESSORS // tiles, triton.cdiv(self.num_rows, 256))))

    def policy(self, network: Network, rows: Tensor, head: HeadShape, terms: PolicyTerms) -> Tensor:
        """As `GradientPlan` has it."""
        self._forward(network, rows)
        layered.policy_loss_kernel[(self._loss_programs,)](
            network.vector, self._hidden[-1], rows, *terms.arguments, self._dy, self._loss_sums, self.num_rows,
            *terms.numbers, **self._last_layer, **head.constants, **terms.constants,
        )  # fmt: skip
        n = self.shape.num_parameters
        self._backward(network, rows, network.gradient[:n])
        reduce_partials(self._loss_sums, network.gradient[n - self.shape.sizes[-1] :], self._sums)
        return self._sums

    def value(self, network: Network, rows: Tensor, terms: ValueTerms) -> Tensor:
        """As `GradientPlan` has it."""
        self._forward(network, rows)
        layered.value_loss_kernel[(self._loss_programs,)](
            network.vector, self._hidden[-1], rows, terms.old_value, terms.target, self._dy, self._value_sums,
            self.num_rows, terms.clip or 0.0, IS_CLIPPED=terms.clip is not None, **self._last_layer,
        )  # fmt: skip
        self._backward(network, rows, network.gradient)
        sums = self._sums[:NUM_VALUE_SUMS]
        reduce_partials(self._value_sums, network.gradient[-1:], sums)
        return sums

    @property
    def _last_layer(self) -> dict[str, Any]:
        shape = self.shape
        return {
            "START": shape.offsets[-1], "FAN_IN": shape.sizes[-2], "K": shape.sizes[-1], "W": shape.widths[-1],
            "BM": self._loss_block, "BK": 32, "PRECISION": self.precision.value, "num_warps": 4,
        }  # fmt: skip

    def _layer(self, i: int) -> dict[str, Any]:
        shape = self.shape
        return {
            "START": shape.offsets[i], "FAN_IN": shape.sizes[i], "FAN_OUT": shape.sizes[i + 1],
            "PRECISION": self.precision.value,
        }  # fmt: skip

    def _forward(self, network: Network, rows: Tensor) -> None:
        if self._by_library:
            self._forward_by_library(network, rows)
            return
        vector, inputs = network.vector, [network.features, *self._hidden]
        for i, hidden in enumerate(self._hidden):
            block = _block_of(hidden.shape[1])
            layered.layer_kernel[(triton.cdiv(self.num_rows, 128), triton.cdiv(hidden.shape[1], block))](
                vector, inputs[i], rows, hidden, self.num_rows, IS_GATHERED=i == 0, IS_TANH=self.shape.is_tanh,
                BM=128, BN=block, BK=32, num_warps=8, num_stages=3, **self._layer(i),
            )  # fmt: skip

    def _backward(self, network: Network, rows: Tensor, gradient: Tensor) -> None:
        if self._by_library:
            self._backward_by_library(network, gradient)
            return
        vector, above = network.vector, [*self._dz, self._dy]
        for i in range(self.shape.depth, 0, -1):
            out = self._dz[i - 1]
            block = _block_of(out.shape[1])
            layered.back_kernel[(triton.cdiv(self.num_rows, 128), triton.cdiv(out.shape[1], block))](
                vector, above[i], self._hidden[i - 1], out, self.num_rows, above[i].stride(0),
                IS_TANH=self.shape.is_tanh, BM=128, BN=block, BK=32, num_warps=8, num_stages=3, **self._layer(i),
            )  # fmt: skip
        inputs = [network.features, *self._hidden]
        splits = self._partials.shape[0]
        for i, dz in enumerate(above):
            fan_in, fan_out = self.shape.sizes[i : i + 2]
            bo, bi = _block_of(fan_out), _block_of(fan_in)
            layered.weight_kernel[(triton.cdiv(fan_out, bo) * triton.cdiv(fan_in, bi), splits)](
                dz, inputs[i], rows, self._partials, self.num_rows, dz.stride(0), self._partials.stride(0),
                IS_GATHERED=i == 0, STEPS=triton.cdiv(triton.cdiv(self.num_rows, splits), 32),
                BO=bo, BI=bi, BR=32, num_warps=8 if bo * bi > 8192 else 4, num_stages=3, **self._layer(i),
            )  # fmt: skip
        reduce_partials(self._partials, gradient, self._nothing)

    @torch.no_grad()
    def _forward_by_library(self, network: Network, rows: Tensor) -> None:
        torch.index_select(network.features, 0, rows, out=self._seen)
        x = self._seen
        with _tf32_products(self.precision is Precision.TF32):
            for i, hidden in enumerate(self._hidden):
                weight, bias = self.shape.layer_of(network.vector, i)
                hidden_layer(x, weight, bias, self.shape.is_tanh, hidden)
                x = hidden

    @torch.no_grad()
    def _backward_by_library(self, network: Network, gradient: Tensor) -> None:
        above, inputs = [*self._dz, self._dy[:, : self.shape.sizes[-1]]], [self._seen, *self._hidden]
        with _tf32_products(self.precision is Precision.TF32):
            for i in range(self.shape.depth, 0, -1):
                out, hidden = self._dz[i - 1], self._hidden[i - 1]
                torch.mm(above[i], self.shape.layer_of(network.vector, i)[0], out=out)
                self._times_slope(out, hidden, self._bias_sums[i - 1], self.shape.layer_of(gradient, i - 1)[1])
            for i, dz in enumerate(above):
                torch.mm(dz.t(), inputs[i], out=self.shape.layer_of(gradient, i)[0])

    def _times_slope(self, dz: Tensor, hidden: Tensor, sums: Tensor, bias: Tensor) -> None:
        """Multiply `dz` by the activation's slope, and write its sum over rows to the gradient of the layer's `bias`."""
        times_slope(dz, hidden, self.shape.is_tanh, sums)
        reduce_partials(sums, bias, self._nothing)


@contextmanager
def _tf32_products(is_tf32: bool) -> Iterator[None]:
    """Whether torch's products of float32 matrices round what they multiply to 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _block_of(size: int) -> int:
    return int(min(128, max(16, triton.next_power_of_2(size))))
