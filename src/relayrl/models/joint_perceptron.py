"""A small policy and its critic as one MLP in NumPy, for the few rows of acting.

At one row, calls cost more than arithmetic. Actor and critic are therefore put side by side into one network, whose second and
later layers are block-diagonal, and biases become weights of a unit that is always 1: a layer is one product and one
activation. For a 64-64 network that takes 3 µs where onnxruntime takes 9. It also never releases the GIL,
so that threads which act at the same time do not wait for each other's turn (docs/runtime.md).

The cost of the empty blocks grows with the rows; `max_rows` says where that begins to matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from relayrl.data.trees import Array
from relayrl.models.onnx_perceptron import Activation, Layer, LayerChain, PolicyChains

MAX_PRODUCTS = 1 << 18
"""Multiplications of a pass; with more of them, OpenBLAS would wake threads of its own."""
_ALWAYS_ONE = {"linear": 1.0, "relu": 1.0, "tanh": 20.0, "clip": 1.0}
"""What a unit is given, so that its activation is exactly 1."""


@dataclass(frozen=True, slots=True)
class _Step:
    """activation(x @ weight), with the unit that is 1 in the last place of x and of the result."""

    weight: Array
    activation: Activation


Run: TypeAlias = Callable[[list[Array]], list[Array]]
"""From [obs] to [distribution, value], both fresh."""


class JointPerceptron:
    """`bind(num_rows)` gives a function for batches of that size; `alone` may be called by many threads at once."""

    def __init__(self, steps: list[_Step], chains: PolicyChains) -> None:
        self._idle_runs: list[Run] = []
        self._steps, self._is_log_softmax = steps, chains.distribution.is_log_softmax
        self._width, self._num_parameters = chains.distribution.width, chains.distribution.num_outputs
        self._has_value = chains.value is not None
        self.max_rows = MAX_PRODUCTS // sum(step.weight.size for step in steps)
        """Batches up to this size are its business; none at all where it is 0."""

    @staticmethod
    def of(chains: PolicyChains) -> JointPerceptron | None:
        """Actor and critic in one; None where they have not the same depth and activations."""
        parts = chains.parts
        if len({tuple(layer.activation for layer in part.layers) for part in parts}) != 1:
            return None
        activations = [layer.activation for layer in parts[0].layers]
        if any(each.name == "clip" and not each.low <= 1.0 <= each.high for each in activations):
            return None
        return JointPerceptron([_step(parts, i) for i in range(len(activations))], chains)

    def alone(self, obs: Array) -> list[Array]:
        """`[distribution, value]` of one row. Every thread that is inside has buffers of its own.

        Log-probabilities are left without their normalisation, which whoever draws from one row does as well.
        """
        try:
            run = self._idle_runs.pop()
        except IndexError:
            run = self.bind(1)
        outputs = run([obs])
        self._idle_runs.append(run)
        return outputs

    def bind(self, num_rows: int) -> Run:
        """How batches of this size are run, by one thread at a time; log-probabilities of a single row as in `alone`."""
        first = np.ones((num_rows, self._width + 1), np.float32)
        seen, x, work = first[:, :-1], first, []
        for step in self._steps:
            out = np.empty((num_rows, step.weight.shape[1]), np.float32)
            work.append((x, step.weight, out, _in_place(step.activation)))
            x = out
        last, size, shape = x, self._num_parameters, seen.shape
        normalizes, has_value, product = self._is_log_softmax and num_rows > 1, self._has_value, np.dot

        def run(inputs: list[Array]) -> list[Array]:
            seen[...] = inputs[0].reshape(shape)
            for layer_input, weight, out, activate in work:
                product(layer_input, weight, out)
                if activate is not None:
                    activate(out, out)
            outputs = last.copy()
            parameters = outputs[:, :size]
            if normalizes:
                _log_softmax(parameters)
            return [parameters, outputs[:, size]] if has_value else [parameters]

        return run


def _step(parts: list[LayerChain], i: int) -> _Step:
    """Layer `i` of all parts; the first one reads the same observation, later ones their own part's units."""
    layers = [part.layers[i] for part in parts]
    num_inputs = len(layers[0].weight) if i == 0 else sum(len(layer.weight) for layer in layers)
    num_outputs = sum(len(layer.bias) for layer in layers)
    weight = np.zeros((num_inputs + 1, num_outputs + 1), np.float32)
    row = column = 0
    for layer in layers:
        _place(weight, layer, row, column)
        row, column = 0 if i == 0 else row + len(layer.weight), column + len(layer.bias)
    weight[-1, -1] = _ALWAYS_ONE[layers[0].activation.name]
    return _Step(weight, layers[0].activation)


def _place(weight: Array, layer: Layer, row: int, column: int) -> None:
    columns = slice(column, column + len(layer.bias))
    weight[row : row + len(layer.weight), columns] = layer.weight
    weight[-1, columns] = layer.bias


def _in_place(activation: Activation) -> Callable[[Array, Array], object] | None:
    match activation.name:
        case "tanh":
            return np.tanh
        case "relu":
            return lambda x, out: np.maximum(x, 0.0, out=out)
        case "clip":
            low, high = np.float32(activation.low), np.float32(activation.high)
            return lambda x, out: np.minimum(np.maximum(x, low, out=out), high, out=out)
    return None


def _log_softmax(parameters: Array) -> None:
    parameters -= np.maximum.reduce(parameters, 1, keepdims=True)
    parameters -= np.log(np.add.reduce(np.exp(parameters), 1, keepdims=True))
