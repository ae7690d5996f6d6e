"""MLPs: a torch module, and the same network in NumPy on views of the same memory.

The module is the reference: it is exported, runs on other devices, and tests hold both faster versions to it. For the small
networks of reinforcement learning, torch spends more on overhead per operation than on arithmetic. On the CPU, acting and
learning therefore run the compiled kernels (`compiled_perceptron`) or, where those are missing, `NumpyPerceptron`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from relayrl.data.trees import Array
from relayrl.models.built_in import BuiltIns
from relayrl.models.settings import Activation
from relayrl.models.shared_rows import SharedRows, laid_out

MODULES: dict[Activation, type[nn.Module]] = {Activation.TANH: nn.Tanh, Activation.RELU: nn.ReLU}


class Perceptron(nn.Sequential):
    """Linear layers with an activation between them; orthogonal weights, zero biases."""

    def __init__(
        self, sizes: Sequence[int], activation: Activation, output_gain: float, generator: torch.Generator
    ) -> None:
        """`sizes` from input to output; hidden layers have gain √2, the last one `output_gain`."""
        layers: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            is_last = i == len(sizes) - 2
            linear = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(linear.weight, output_gain if is_last else 2.0**0.5, generator=generator)
            nn.init.zeros_(linear.bias)
            layers += [linear] if is_last else [linear, MODULES[activation]()]
        super().__init__(*layers)
        self.activation = activation

    def linears(self) -> list[nn.Linear]:
        """The layers that have parameters."""
        return [layer for layer in self if isinstance(layer, nn.Linear)]


_NETWORKS, _LAYERS = BuiltIns(Perceptron), BuiltIns(nn.Linear, *MODULES.values())


def is_plain(network: nn.Module) -> bool:
    """Whether a network is a `Perceptron` on the CPU whose layers and methods are the built-in ones, without hooks."""
    if network not in _NETWORKS or not isinstance(network, Perceptron):
        return False
    layers = list(network)
    kinds = [MODULES[network.activation] if i % 2 else nn.Linear for i in range(len(layers))]
    if (
        [type(layer) for layer in layers] != kinds
        or not len(layers) % 2
        or any(layer not in _LAYERS for layer in layers)
    ):
        return False
    linears = network.linears()
    is_chain = all(below.out_features == above.in_features for below, above in pairwise(linears))
    return is_chain and all(_is_plain_parameter(p) for layer in linears for p in (layer.weight, layer.bias))


def _is_plain_parameter(parameter: torch.Tensor | None) -> bool:
    """Whether NumPy can view a parameter's memory, and no hook changes its gradients."""
    return (
        type(parameter) is nn.Parameter
        and parameter.device.type == "cpu"
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
        and not parameter._backward_hooks
    )


class NumpyPerceptron:
    """Forward and backward passes of a `Perceptron` on the CPU, always with its live parameters.

    Outputs are buffers that the next call with as many rows overwrites.
    """

    def __init__(self, module: Perceptron) -> None:
        linears = module.linears()
        self._weights = [layer.weight.detach().numpy() for layer in linears]
        self._biases = [layer.bias.detach().numpy() for layer in linears]
        self._module = module
        self._is_tanh = module.activation is Activation.TANH
        self._rows = -1
        self._inputs: list[Array | SharedRows] = []

    def forward(self, x: Array | SharedRows) -> Array:
        """[M, O] outputs of `x` [M, I]."""
        if len(x) != self._rows:
            self._rows = len(x)
            self._outputs = [np.empty((len(x), len(bias)), np.float32) for bias in self._biases]
            self._deltas: list[Array] = []
        is_laid_out = isinstance(x, SharedRows) and not x.pays_factored(len(x))
        self._inputs = [laid_out(x) if is_laid_out else x, *self._outputs[:-1]]
        last = len(self._weights) - 1
        for i, (weight, bias, out) in enumerate(zip(self._weights, self._biases, self._outputs, strict=True)):
            _multiply(self._inputs[i], weight, out)
            np.add(out, bias, out=out)
            if i != last:
                np.tanh(out, out=out) if self._is_tanh else np.maximum(out, 0.0, out=out)
        return self._outputs[-1]

    def backward(self, gradient: Array) -> None:
        """Write the gradients of the last `forward`'s parameters into their `.grad`, given that of its output [M, O]."""
        delta = gradient
        for i, layer in reversed(list(enumerate(self._module.linears()))):
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            _multiply_transposed(self._inputs[i], delta, layer.weight.grad.numpy())
            np.sum(delta, 0, out=layer.bias.grad.numpy())
            if i > 0:
                delta = self._delta(i, delta)

    def _delta(self, i: int, above: Array) -> Array:
        """The gradient of what goes into layer `i - 1`'s activation, given that of layer `i`'s."""
        if not self._deltas:
            self._deltas = [np.empty_like(out) for out in self._outputs[:-1]]
            self._slopes = [np.empty_like(out) for out in self._outputs[:-1]]
        delta = np.matmul(above, self._weights[i], out=self._deltas[i - 1])
        delta *= self._slope(i - 1)
        return delta

    def _slope(self, i: int) -> Array:
        """Derivative of layer `i`'s activation, from its output: 1 − tanh², or 1 where relu is positive."""
        output, slope = self._outputs[i], self._slopes[i]
        if self._is_tanh:
            np.multiply(output, output, out=slope)
            return np.subtract(1.0, slope, out=slope)
        return np.greater(output, 0.0, out=slope)


def _multiply(x: Array | SharedRows, weight: Array, out: Array) -> None:
    """`out` [M, O] = x Wᵀ."""
    if isinstance(x, SharedRows):
        x.multiply(weight, out)
    else:
        np.matmul(x, weight.T, out=out)


def _multiply_transposed(x: Array | SharedRows, delta: Array, out: Array) -> None:
    """`out` [O, I] = δᵀ x."""
    if isinstance(x, SharedRows):
        x.multiply_transposed(delta, out)
    else:
        np.matmul(delta.T, x, out=out)
