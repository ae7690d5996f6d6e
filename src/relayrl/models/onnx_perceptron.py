"""Finds the MLPs in a policy's ONNX graph: what `distribution` and `value` are, as layers from the observation.

Every tensor of the graph is followed from the observation on. Constants are computed; products and sums with constants become
part of the layer before them; a spread that is the same for all rows becomes outputs with a bias and no weights. A graph with
anything else in it (masks, convolutions, memory) is not recognised, and is left to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from relayrl.data.trees import Array
from relayrl.models.onnx_file import OnnxGraph, OnnxNode

FLOAT32 = 1
"""ONNX's number of the type."""
_FOLDABLE: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Log": np.log,
    "Identity": np.asarray,
}


@dataclass(frozen=True, slots=True)
class Activation:
    """An element-wise function, by name, with bounds for `clip`."""

    name: str
    low: float = 0.0
    high: float = 0.0


LINEAR, TANH, RELU = Activation("linear"), Activation("tanh"), Activation("relu")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """activation(x @ weight + bias), with weight [I, O] and bias [O]."""

    weight: Array
    bias: Array
    activation: Activation


@dataclass(frozen=True, slots=True, eq=False)
class LayerChain:
    """A tensor [L, O] that is layers applied to the observation [L, width]; at last perhaps a log-softmax."""

    width: int
    layers: tuple[Layer, ...] = ()
    is_log_softmax: bool = False
    is_squeezed: bool = False

    @property
    def num_outputs(self) -> int:
        return len(self.layers[-1].bias) if self.layers else self.width

    def opened(self) -> LayerChain:
        """The same chain, whose last layer is linear and can take more in."""
        if self.layers and self.layers[-1].activation == LINEAR:
            return self
        size = self.num_outputs
        return self.then(Layer(np.eye(size, dtype=np.float32), np.zeros(size, np.float32), LINEAR))

    def then(self, layer: Layer) -> LayerChain:
        return replace(self, layers=(*self.layers, layer))

    def with_last(self, layer: Layer) -> LayerChain:
        return replace(self, layers=(*self.layers[:-1], layer))


@dataclass(frozen=True, slots=True)
class SameInAllRows:
    """A tensor [L, O] whose rows are all `row` [O]."""

    row: Array


@dataclass(frozen=True, slots=True)
class ShapeOfRows:
    """The shape of a tensor with a row per observation."""


Known: TypeAlias = "Array | LayerChain | SameInAllRows | ShapeOfRows"


@dataclass(frozen=True, slots=True)
class PolicyChains:
    """What a policy computes: the distribution's parameters and, where it has a critic, the value."""

    distribution: LayerChain
    value: LayerChain | None

    @property
    def parts(self) -> list[LayerChain]:
        return [self.distribution] if self.value is None else [self.distribution, self.value]

    @property
    def num_weights(self) -> int:
        return sum(layer.weight.size for part in self.parts for layer in part.layers)


def policy_chains(graph: OnnxGraph, width: int) -> PolicyChains | None:
    """The MLPs of a graph with one observation of `width` numbers; None where it has other parts."""
    inputs = [name for name in graph.inputs if name not in graph.weights]
    if inputs != ["obs"]:
        return None
    known: dict[str, Known] = {**graph.weights, "obs": LayerChain(width)}
    for node in graph.nodes:
        arguments = [known[name] for name in node.inputs if name in known]
        result = _result(node, arguments) if len(arguments) == len(node.inputs) else None
        if result is not None:
            known[node.outputs[0]] = result
    distribution, value = known.get("distribution"), known.get("value")
    if not isinstance(distribution, LayerChain) or distribution.is_squeezed or not distribution.layers:
        return None
    if "value" not in graph.outputs:
        return PolicyChains(distribution, None)
    if not isinstance(value, LayerChain) or not value.is_squeezed or value.is_log_softmax:
        return None
    return PolicyChains(distribution, value)


def _result(node: OnnxNode, arguments: list[Known]) -> Known | None:
    """The node's first output, if it can be computed."""
    if node.op == "Constant":
        value = node.attributes.get("value")
        return value if isinstance(value, np.ndarray) else None
    if all(isinstance(each, np.ndarray) for each in arguments):
        fold = _FOLDABLE.get(node.op)
        return None if fold is None else np.asarray(fold(*arguments))
    first = arguments[0]
    if node.op == "Expand" and isinstance(first, np.ndarray) and isinstance(arguments[1], ShapeOfRows):
        return SameInAllRows(first) if first.ndim == 1 else None
    if node.op in ("Add", "Mul") and isinstance(first, np.ndarray):
        arguments = arguments[::-1]
    chain, rest = arguments[0], arguments[1:]
    if not isinstance(chain, LayerChain) or chain.is_log_softmax:
        return None
    if node.op == "Shape":
        return ShapeOfRows()
    if node.op == "Concat":
        return _concatenated(chain, rest) if node.attributes.get("axis") in (-1, 1) else None
    constants = [each for each in rest if isinstance(each, np.ndarray)]
    return _of_chain(node, chain, constants) if len(constants) == len(rest) else None


def _of_chain(node: OnnxNode, chain: LayerChain, constants: list[Array]) -> LayerChain | None:
    match node.op:
        case "Identity":
            return chain
        case "Flatten":
            return chain if node.attributes.get("axis", 1) == 1 and not chain.layers else None
        case "Cast":
            return chain if node.attributes.get("to") == FLOAT32 else None
        case "Gemm":
            return _gemm(node, chain, constants)
        case "MatMul":
            return _affine(chain, constants[0], np.zeros(constants[0].shape[-1], np.float32))
        case "Add" | "Sub" | "Mul" | "Div":
            return _with_constant(node.op, chain, constants[0])
        case "Tanh" | "Relu":
            return _activated(chain, TANH if node.op == "Tanh" else RELU)
        case "Clip":
            bounds = [float(bound) for bound in constants if bound.size == 1]
            return _activated(chain, Activation("clip", *bounds)) if len(bounds) == 2 else None
        case "LogSoftmax":
            is_last = node.attributes.get("axis", -1) in (-1, 1)
            return replace(chain.opened(), is_log_softmax=True) if is_last and not chain.is_squeezed else None
        case "Squeeze":
            is_column = chain.num_outputs == 1 and bool(constants) and constants[0].tolist() in ([1], [-1])
            return replace(chain, is_squeezed=True) if is_column else None
    return None


def _gemm(node: OnnxNode, chain: LayerChain, constants: list[Array]) -> LayerChain | None:
    given = node.attributes
    if len(constants) != 2 or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0 or given.get("transA", 0):
        return None
    weight, bias = constants
    return _affine(chain, weight.T if given.get("transB", 0) else weight, bias)


def _affine(chain: LayerChain, weight: Array, bias: Array) -> LayerChain | None:
    if chain.is_squeezed or weight.ndim != 2 or bias.ndim != 1 or len(weight) != chain.num_outputs:
        return None
    return chain.then(Layer(weight, bias, LINEAR))


def _with_constant(op: str, chain: LayerChain, constant: Array) -> LayerChain | None:
    """A product, quotient, sum or difference with one number, or one per output."""
    if constant.size not in (1, chain.num_outputs) or constant.ndim > 1:
        return None
    opened = chain.opened()
    last = opened.layers[-1]
    match op:
        case "Add" | "Sub":
            moved = last.bias + constant if op == "Add" else last.bias - constant
            return opened.with_last(replace(last, bias=moved))
        case _:
            factor = constant if op == "Mul" else 1.0 / constant
            return opened.with_last(replace(last, weight=last.weight * factor, bias=last.bias * factor))


def _activated(chain: LayerChain, activation: Activation) -> LayerChain:
    opened = chain.opened()
    return opened.with_last(replace(opened.layers[-1], activation=activation))


def _concatenated(chain: LayerChain, rest: list[Known]) -> LayerChain | None:
    if chain.is_squeezed or not all(isinstance(each, SameInAllRows) for each in rest):
        return None
    opened = chain.opened()
    last = opened.layers[-1]
    rows = np.concatenate([each.row for each in rest if isinstance(each, SameInAllRows)])
    weight = np.concatenate([last.weight, np.zeros((len(last.weight), len(rows)), np.float32)], 1)
    return opened.with_last(replace(last, weight=weight, bias=np.concatenate([last.bias, rows])))
