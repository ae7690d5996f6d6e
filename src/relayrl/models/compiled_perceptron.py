"""Forward passes of perceptrons, and actions drawn from them, by the compiled kernels on the modules' live parameters."""

from __future__ import annotations

import numpy as np

from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import Activation


class CompiledPerceptron:
    """A `Perceptron` on the CPU. Outputs are buffers that the next call with as many rows overwrites."""

    def __init__(self, module: Perceptron) -> None:
        """The kernels must be there (`compiled_network`)."""
        found = kernels()
        assert found is not None
        linears = module.linears()
        layers = tuple((layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in linears)
        self.network = found.Perceptron(layers, module.activation is Activation.TANH)
        self._num_outputs = linears[-1].out_features
        self._outputs = np.empty((0, self._num_outputs), np.float32)

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of `x` [M, I]."""
        if len(x) != len(self._outputs):
            self._outputs = np.empty((len(x), self._num_outputs), np.float32)
        self.network.forward(as_rows(x), self._outputs, num_threads())
        return self._outputs


def compiled_network(module: Perceptron) -> CompiledPerceptron | None:
    """The module in compiled form; None where there are no kernels."""
    return None if kernels() is None else CompiledPerceptron(module)


def as_rows(x: Array) -> Array:
    """`x` as the kernels take it."""
    return np.ascontiguousarray(x, np.float32)
