"""Perceptrons by the compiled kernels, on the modules' live parameters: forward passes, drawn actions, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import Activation


class CompiledPerceptron:
    """A `Perceptron` on the CPU. Outputs are buffers that the next call with as many rows overwrites."""

    def __init__(self, module: Perceptron) -> None:
        """The kernels must be there (`compiled_network`)."""
        self.network = _live(module)
        self._num_outputs = module.linears()[-1].out_features
        self._outputs = np.empty((0, self._num_outputs), np.float32)

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of `x` [M, I]."""
        if len(x) != len(self._outputs):
            self._outputs = np.empty((len(x), self._num_outputs), np.float32)
        self.network.forward(as_rows(x), self._outputs, num_threads())
        return self._outputs


class CompiledTape:
    """A `Perceptron` on the CPU that is differentiated, where it has parameters to train: `Differentiable`, compiled."""

    def __init__(self, module: Perceptron) -> None:
        """The kernels must be there, and the parameters' gradients be one vector (`FlatAdam`) by the first `backward`."""
        found = kernels()
        assert found is not None
        is_trained = any(p.requires_grad for p in module.parameters())
        self._module, self._tape = module, found.Tape(_live(module), is_trained)
        linears = module.linears()
        self._width, self._num_outputs = linears[0].in_features, linears[-1].out_features
        self._outputs = np.empty((0, self._num_outputs), np.float32)
        self._gradient: Array | None = None

    def forward(self, x: Array) -> Array:
        if len(x) != len(self._outputs):
            self._outputs = np.empty((len(x), self._num_outputs), np.float32)
        self._tape.forward(as_rows(x), self._outputs, num_threads())
        return self._outputs

    def backward(self, gradient: Array) -> None:
        if self._gradient is None:
            self._gradient = _flat_gradient(self._module)
        self._tape.backward(as_rows(gradient), self._gradient, num_threads())

    def input_gradient(self, gradient: Array) -> Array:
        by_input = np.empty((len(gradient), self._width), np.float32)
        self._tape.input_gradient(as_rows(gradient), by_input, num_threads())
        return by_input


def _live(module: Perceptron) -> Any:
    """The kernels' side of a module's parameters."""
    found = kernels()
    assert found is not None
    layers = tuple((layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in module.linears())
    return found.Perceptron(layers, module.activation is Activation.TANH)


def _flat_gradient(module: Perceptron) -> Array:
    """The gradients of all parameters as the one vector that they lie in."""
    gradients = [p.grad for layer in module.linears() for p in (layer.weight, layer.bias)]
    offset = 0
    first = gradients[0]
    assert first is not None
    for gradient in gradients:
        assert gradient is not None
        assert gradient.data_ptr() == first.data_ptr() + 4 * offset, "gradients do not lie side by side"
        offset += gradient.numel()
    return np.asarray(first.as_strided((offset,), (1,)).numpy())


def compiled_network(module: Perceptron) -> CompiledPerceptron | None:
    """The module in compiled form; None where there are no kernels."""
    return None if kernels() is None else CompiledPerceptron(module)


def as_rows(x: Array) -> Array:
    """`x` as the kernels take it."""
    return np.ascontiguousarray(x, np.float32)
