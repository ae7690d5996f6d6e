"""Networks as functions with derivatives, rows in and rows out, in NumPy arrays.

An algorithm that writes its loss's derivative down needs three things of a network: its outputs, the gradient of its
parameters and that of its input, given the gradient of the outputs. Perceptrons on the CPU give them by compiled kernels
(`compiled_perceptron.CompiledTape`) or in NumPy (`perceptron.NumpyPerceptron`); every other module through autograd. Networks
that see the same inputs, such as twin critics, are `Differentiables`: the kernels give each of them a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.compiled.loader import kernels
from relayrl.data.trees import Array
from relayrl.models.compiled_perceptron import CompiledTape, CompiledTapes
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


class Differentiables(Protocol):
    """Networks with the same inputs; as `Differentiable`, with an array for each."""

    def forward(self, x: Array) -> Sequence[Array]: ...

    def regress(self, x: Array, target: Array, share: Array) -> tuple[Sequence[Array], float]:
        """Outputs [M, O] of `x`, and the sum of each network's loss Σ ½ `share` (output − `target`)²; gradients in `.grad`."""

    def lowest(self, x: Array, share: Array) -> tuple[Array, Array]:
        """[M] the lowest of the networks' single outputs for `x`, and [M, I] the gradient of Σ `share` lowest by `x`."""


class OneAfterTheOther:
    """`Differentiables` of any kind."""

    def __init__(self, networks: Sequence[Differentiable]) -> None:
        self._networks = networks

    def forward(self, x: Array) -> list[Array]:
        return [network.forward(x) for network in self._networks]

    def regress(self, x: Array, target: Array, share: Array) -> tuple[list[Array], float]:
        outputs = self.forward(x)
        errors = [output - target for output in outputs]
        for network, error in zip(self._networks, errors, strict=True):
            network.backward(error * share)
        return outputs, sum(0.5 * float(np.vdot(error * error, share)) for error in errors)

    def lowest(self, x: Array, share: Array) -> tuple[Array, Array]:
        values = np.stack([output[:, 0] for output in self.forward(x)])
        which = values.argmin(0)
        by_input = [network.input_gradient((share * (which == i))[:, None]) for i, network in enumerate(self._networks)]
        return values.min(0), np.asarray(np.add.reduce(by_input))


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


def differentiables(modules: Sequence[nn.Module]) -> Differentiables:
    """The fastest way to differentiate networks that see the same inputs."""
    perceptrons = [module for module in modules if isinstance(module, Perceptron) and runs_in_numpy(module)]
    if kernels() is None or len(perceptrons) < len(modules):
        return OneAfterTheOther([differentiable(module) for module in modules])
    return CompiledTapes(perceptrons)
