"""A few numbers of which NumPy knows what the kernels must make, in a millisecond: a compiler that got them wrong is noticed.

Forward passes of one row, of two and of several, each of which has code of its own; a draw; a gradient and a step of Adam.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = (19, 70, 66, 3)
"""Wider than the widest vectors, and no multiple of them."""
NUM_ROWS = 7
TOLERANCE = 1e-4


def fault_of(module: ModuleType) -> str | None:
    """What the kernels of the instruction set in use get wrong; None where all is well."""
    for is_tanh in (True, False):
        layers = [(_numbers(out, into, scale=0.2), _numbers(out)) for into, out in pairwise(SIZES)]
        x = _numbers(NUM_ROWS, SIZES[0])
        values = _forward(layers, x, is_tanh)
        found = _outputs(module, layers, is_tanh, x) | _gradients(module, layers, is_tanh, x)
        expected = {
            **{name: values[-1][:rows] for name, rows in _ROWS.items()},
            "drawn log-probabilities": _log_softmax(values[-1])[:, 0],
            "gradients": _gradient(layers, values, is_tanh),
        }
        for name, numbers in expected.items():
            if not np.allclose(found[name], numbers, TOLERANCE, TOLERANCE):
                return f"{name} of a network with {'tanh' if is_tanh else 'relu'} differ from NumPy's"
    return None if _steps_like_adam(module) else "a step of Adam differs from NumPy's"


_ROWS = {"outputs of one row": 1, "outputs of two rows": 2, "outputs of several rows": NUM_ROWS, "frozen outputs": 2}


def _numbers(*shape: int, scale: float = 1.0) -> Array:
    """Numbers without a pattern, the same everywhere and every time."""
    count = np.arange(1, np.prod(shape) + 1, dtype=np.float32)
    return np.asarray(scale * np.sin(count * count), np.float32).reshape(shape)


def _outputs(module: ModuleType, layers: list[tuple[Array, Array]], is_tanh: bool, x: Array) -> dict[str, Array]:
    found = {}
    for name, rows in _ROWS.items():
        network = module.MLP(tuple(layers), is_tanh, name.startswith("frozen"))
        found[name] = np.empty((rows, SIZES[-1]), np.float32)
        network.forward(x[:rows], found[name], 1)
    logp, choice = np.empty(NUM_ROWS, np.float32), np.empty(NUM_ROWS, np.int64)
    draws = np.full(NUM_ROWS, 1.0 - 2.0**-24, np.float32)  # the largest there is, with which the first action is drawn
    network.choose(x, (SIZES[-1],), draws, None, choice, logp, 1)
    return found | {"drawn log-probabilities": np.where(choice == 0, logp, np.nan)}


def _gradients(module: ModuleType, layers: list[tuple[Array, Array]], is_tanh: bool, x: Array) -> dict[str, Array]:
    tape = module.Tape(module.MLP(tuple(layers), is_tanh), True)
    out = np.empty((NUM_ROWS, SIZES[-1]), np.float32)
    flat = np.empty(sum(weight.size + bias.size for weight, bias in layers), np.float32)
    target, share = np.zeros_like(out), np.ones_like(out)
    module.regress_tapes((tape,), ((x, None),), False, target, share, (out,), (flat,), 1)
    return {"gradients": flat}


def _forward(layers: list[tuple[Array, Array]], x: Array, is_tanh: bool) -> list[Array]:
    """What goes into each layer, and what comes out of the last."""
    values = [x]
    for i, (weight, bias) in enumerate(layers):
        y = values[-1] @ weight.T + bias
        values.append(y if i == len(layers) - 1 else np.tanh(y) if is_tanh else np.maximum(y, 0.0))
    return values


def _gradient(layers: list[tuple[Array, Array]], values: list[Array], is_tanh: bool) -> Array:
    """Of Σ ½ out², in the order of the parameters."""
    delta, parts = values[-1], []
    for (weight, _), x in zip(reversed(layers), reversed(values[:-1]), strict=True):
        parts += [delta.sum(0), (delta.T @ x).ravel()]
        delta = (delta @ weight) * (1.0 - x * x if is_tanh else x > 0.0)
    return np.concatenate(parts[::-1])


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def _steps_like_adam(module: ModuleType) -> bool:
    before, gradient = _numbers(37), _numbers(37, scale=2.0)
    vector, first, second = before.copy(), np.zeros_like(before), np.zeros_like(before)
    norm = module.adam_step(vector, gradient, first, second, 0, 0.1, 0.9, 0.999, 1e-8, np.inf, 1)
    # The first step's corrected moments are g and g²: θ − α g / |g|.
    expected = before - 0.1 * np.sign(gradient)
    return bool(np.allclose(vector, expected, TOLERANCE, TOLERANCE)) and bool(
        np.isclose(norm, np.linalg.norm(gradient), TOLERANCE)
    )
