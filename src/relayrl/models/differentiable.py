"""Networks as functions with derivatives, rows in and rows out, in NumPy arrays.

An algorithm that writes its loss's derivative down needs three things of a network: its outputs, the gradient of its
parameters and that of its input, given the gradient of the outputs. Perceptrons on the CPU give them by compiled kernels
(`compiled_perceptron.CompiledTape`) or in NumPy (`perceptron.NumpyPerceptron`); every other module through autograd.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.compiled.loader import kernels
from relayrl.data.trees import Array
from relayrl.models.compiled_perceptron import CompiledTape
from relayrl.models.numpy_policy import runs_in_numpy
from relayrl.models.perceptron import NumpyPerceptron, Perceptron


class Differentiable(Protocol):
    """A network whose outputs and gradients are of its last `forward`."""

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of `x` [M, I]; valid until the next call."""

    def backward(self, gradient: Array) -> None:
        """Write the parameters' gradients into their `.grad`, given that of the outputs [M, O]."""

    def input_gradient(self, gradient: Array) -> Array:
        """[M, I] the gradient of the input, given that of the outputs; the parameters' stays as it is."""


class AutogradNetwork:
    """Any module, differentiated by torch."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._input = self._output = torch.empty(0)

    def forward(self, x: Array) -> Array:
        self._input = torch.from_numpy(x)
        if not self._parameters:
            with torch.no_grad():
                frozen: Tensor = self._module(self._input)
            return np.asarray(frozen.numpy())
        self._input = self._input.detach().requires_grad_()
        self._output = self._module(self._input)
        return np.asarray(self._output.detach().numpy())

    def backward(self, gradient: Array) -> None:
        for parameter, own in zip(self._parameters, self._pulled_back(gradient, self._parameters), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(own)

    def input_gradient(self, gradient: Array) -> Array:
        return np.asarray(self._pulled_back(gradient, [self._input])[0].numpy())

    def _pulled_back(self, gradient: Array, sources: list[Tensor] | list[nn.Parameter]) -> tuple[Tensor, ...]:
        by_output = torch.from_numpy(np.ascontiguousarray(gradient))
        return torch.autograd.grad(self._output, sources, by_output, allow_unused=True, materialize_grads=True)


def differentiable(module: nn.Module) -> Differentiable:
    """The fastest way to differentiate a network."""
    if not runs_in_numpy(module):
        return AutogradNetwork(module)
    assert isinstance(module, Perceptron)
    return NumpyPerceptron(module) if kernels() is None else CompiledTape(module)
