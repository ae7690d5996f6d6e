"""Actions of some rows of a small MLP, by compiled kernels: one call draws them, another computes their values.

Only where the kernels are there (`relayrl.compiled`), and for graphs of tanh or relu between linear layers, with one choice
or a normal distribution behind them. What is drawn is what the head draws from the same generator.

A call holds the GIL from its first to its last number, so that any number of threads may be inside: with their
own arrays, one after the other.

Not its job: finding the layers in a file (`models.onnx_perceptron`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from relayrl.compiled.loader import kernels
from relayrl.data.trees import Array
from relayrl.models.action_head import ActionHead
from relayrl.models.box_heads import GaussianHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.discrete_heads import CategoricalHead
from relayrl.models.onnx_perceptron import LINEAR, RELU, TANH, Layer, LayerChain, PolicyChains

MAX_PRODUCTS = 1 << 21
"""Multiplications of a call, which does not let other threads run: some 50 µs. Larger ones are left to onnxruntime."""
DRAWS_AHEAD = 64
_HEADS = BuiltIns(CategoricalHead, GaussianHead)

DrawNumbers: TypeAlias = Callable[[int], Array]
Drawing: TypeAlias = Callable[[Array, Array, Array | None], Array]
"""Actions from observations [L, O] and masks, with their log-probabilities written into the second argument [L]."""


class CompiledDrawing:
    """Draws the actions of up to `max_rows` rows, and tells their values."""

    def __init__(self, before: Layer | None, draw: Drawing, critic: Any, max_rows: int) -> None:
        self._draw, self._critic, self.max_rows = draw, critic, max_rows
        self._normalize = None if before is None else _normalizer(before)

    @staticmethod
    def of(chains: PolicyChains | None, head: ActionHead, rng: np.random.Generator) -> CompiledDrawing | None:
        """None where there are no kernels, or where the policy is not of the kind that they know."""
        module = kernels()
        if module is None or chains is None:
            return None
        before = _common_normalization(chains)
        networks = [part.layers if before is None else part.layers[1:] for part in chains.parts]
        num_weights = sum(layer.weight.size for layers in networks for layer in layers)
        if num_weights > MAX_PRODUCTS or not all(_is_plain(layers) for layers in networks):
            return None
        draw = _drawing(module, networks[0], chains.distribution, head, rng)
        critic = _perceptron(module, networks[1]) if len(networks) > 1 else None
        return None if draw is None else CompiledDrawing(before, draw, critic, MAX_PRODUCTS // num_weights)

    def __call__(self, obs: Array, mask: Array | None) -> tuple[Array, Array, Array | None]:
        """Actions [L, …], log-probabilities [L] and values [L], all fresh, for observations [L, …]."""
        L, value = len(obs), None
        x = np.ascontiguousarray(obs, np.float32)
        if self._normalize is not None:
            x = self._normalize(x.reshape(L, -1))
        logp = np.empty(L, np.float32)
        action = self._draw(x, logp, mask)
        if self._critic is not None:
            value = np.empty(L, np.float32)
            self._critic.forward(x, value, 1)
        return action, logp, value


def _drawing(
    module: Any, layers: tuple[Layer, ...], chain: LayerChain, head: ActionHead, rng: np.random.Generator
) -> Drawing | None:
    if head not in _HEADS:
        return None
    if isinstance(head, CategoricalHead) and chain.is_log_softmax:
        return _categorical(_perceptron(module, layers), head, rng)
    if isinstance(head, GaussianHead) and not chain.is_log_softmax:
        return _normal(module, layers, head.num_actions, rng)
    return None


def _categorical(network: Any, head: CategoricalHead, rng: np.random.Generator) -> Drawing:
    parts, start, numbers = (head.num_outputs,), head.start, NumbersAhead(lambda n: rng.random(n, dtype=np.float32))

    def draw(x: Array, logp: Array, mask: Array | None) -> Array:
        choice = np.empty(len(logp), np.int64)
        allowed = None if mask is None else np.ascontiguousarray(mask)
        network.choose(x, parts, numbers.take(len(logp)), allowed, choice, logp, 1)
        if start:
            choice += start
        return choice

    return draw


def _normal(module: Any, layers: tuple[Layer, ...], num_actions: int, rng: np.random.Generator) -> Drawing | None:
    """Where the deviations are the same for all observations: outputs with a bias and no weights."""
    last = layers[-1]
    if last.weight[:, num_actions:].any():
        return None
    means = Layer(last.weight[:, :num_actions], last.bias[:num_actions], LINEAR)
    network, log_std = _perceptron(module, (*layers[:-1], means)), np.ascontiguousarray(last.bias[num_actions:])
    one, zero = np.ones(num_actions, np.float32), np.zeros(num_actions, np.float32)
    numbers = NumbersAhead(lambda n: rng.standard_normal((n, num_actions), dtype=np.float32))

    def draw(x: Array, logp: Array, mask: Array | None) -> Array:
        action = np.empty((len(logp), num_actions), np.float32)
        network.draw_normal(x, numbers.take(len(logp)), log_std, one, zero, action, logp, 1)
        return action

    return draw


class NumbersAhead:
    """Random numbers of rows; those of single rows are drawn many at a time, and taken by any thread."""

    def __init__(self, draw: DrawNumbers) -> None:
        self._draw = draw
        self._ahead: list[Array] = []

    def take(self, num_rows: int) -> Array:
        """Numbers of `num_rows` rows that nobody else gets."""
        if num_rows > 1:
            return self._draw(num_rows)
        try:
            return self._ahead.pop()
        except IndexError:  # asked for rather than looked at: another thread may take the last one
            ahead: list[Array] = list(self._draw(DRAWS_AHEAD)[::-1, None])  # the last of a list is the first to go
            first = ahead.pop()
            self._ahead = ahead
            return first


def _perceptron(module: Any, layers: tuple[Layer, ...]) -> Any:
    pairs = tuple((np.ascontiguousarray(each.weight.T, np.float32), each.bias.astype(np.float32)) for each in layers)
    return module.Perceptron(pairs, layers[0].activation == TANH, True)


def _is_plain(layers: tuple[Layer, ...]) -> bool:
    """Whether one of the two activations is between all layers, and none behind the last."""
    between = {layer.activation for layer in layers[:-1]}
    return bool(layers) and layers[-1].activation == LINEAR and (between <= {TANH} or between <= {RELU})


def _common_normalization(chains: PolicyChains) -> Layer | None:
    """The clipped scaling of observations that all parts begin with, if there is one."""
    firsts = {id(part.layers[0]): part.layers[0] for part in chains.parts}
    first = chains.distribution.layers[0]
    is_diagonal = (
        first.weight.shape[0] == first.weight.shape[1] and not (first.weight - np.diag(np.diag(first.weight))).any()
    )
    return first if len(firsts) == 1 and first.activation.name == "clip" and is_diagonal else None


def _normalizer(layer: Layer) -> Callable[[Array], Array]:
    scale, low, high = np.diag(layer.weight).copy(), np.float32(layer.activation.low), np.float32(layer.activation.high)

    def normalize(x: Array) -> Array:
        scaled = x * scale
        scaled += layer.bias
        np.maximum(scaled, low, out=scaled)
        np.minimum(scaled, high, out=scaled)
        return np.asarray(scaled)

    return normalize
