"""MLPs by the compiled kernels, on the modules' live parameters: forward passes, drawn actions, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.network_settings import Activation
from relayrl.models.networks.mlp import MLP
from relayrl.models.networks.shared_rows import OwnColumns, SharedRows


class CompiledMLP:
    """A `MLP` on the CPU. Outputs are buffers that the next call with as many rows overwrites."""

    def __init__(self, module: MLP) -> None:
        """The kernels must be there (`has_kernels`)."""
        self.network = _live(module)
        self._num_outputs = module.linears()[-1].out_features
        self._outputs = np.empty((0, self._num_outputs), np.float32)

    def forward(self, x: Array | SharedRows) -> Array:
        """[M, O] outputs of `x` [M, I]."""
        if len(x) != len(self._outputs):
            self._outputs = np.empty((len(x), self._num_outputs), np.float32)
        if isinstance(x, SharedRows):
            self.network.forward_parts(*as_inputs(x, len(x)), self._outputs, num_threads())
        else:
            self.network.forward(as_rows(x), self._outputs, num_threads())
        return self._outputs


class CompiledTapes:
    """`Differentiables`, compiled: MLPs on the CPU, differentiated where they have parameters to train."""

    def __init__(self, modules: Sequence[MLP], *, learns: bool = True) -> None:
        """The kernels must be there and, where it learns, the gradients be one vector (`FlatAdam`) by the first `backward`."""
        found = kernels()
        assert found is not None
        self._kernels, self._modules = found, tuple(modules)
        self._networks = tuple(_live(module) for module in modules)
        self._tapes = tuple(found.Tape(network, learns) for network in self._networks)
        self._widths = [module.linears()[-1].out_features for module in modules]
        self._outputs: tuple[Array, ...] = ()
        self._gradients: tuple[Array, ...] = ()
        self._num_rows = -1

    def forward(self, x: Array | SharedRows) -> tuple[Array, ...]:
        """Outputs; of rows that share parts, nothing is kept for `backward`."""
        self._reserve(len(x))
        if isinstance(x, SharedRows):
            inputs = as_inputs(x, len(x))
            for network, outputs in zip(self._networks, self._outputs, strict=True):
                network.forward_parts(*inputs, outputs, num_threads())
        else:
            self._kernels.forward_tapes(self._tapes, (as_rows(x),) * len(self._tapes), self._outputs, num_threads())
        return self._outputs

    def backward(self, gradients: Sequence[Array]) -> None:
        given = tuple(as_rows(gradient) for gradient in gradients)
        self._kernels.backward_tapes(self._tapes, given, self._flat_gradients(), num_threads())

    def regress(self, x: Array | SharedRows, target: Array, share: Array) -> tuple[tuple[Array, ...], float]:
        self._reserve(len(x))
        given = *as_inputs(x, len(x)), as_rows(target), as_rows(share)
        flat = self._flat_gradients()
        loss: float = self._kernels.regress_tapes(self._tapes, *given, self._outputs, flat, num_threads())
        return self._outputs, loss

    def min_q(self, x: Array | SharedRows, own: OwnColumns, share: Array) -> tuple[Array, Array]:
        minimum, by_own = np.empty(len(x), np.float32), np.empty(own.numbers.shape, np.float32)
        first = np.ascontiguousarray(own.first, np.int64)
        given = *as_inputs(x, len(x)), first, as_rows(own.numbers), as_rows(share)
        self._kernels.min_q(self._networks, *given, minimum, by_own, num_threads())
        return minimum, by_own

    def _reserve(self, num_rows: int) -> None:
        if num_rows != self._num_rows:
            self._num_rows = num_rows
            self._outputs = tuple(np.empty((num_rows, width), np.float32) for width in self._widths)

    def _flat_gradients(self) -> tuple[Array, ...]:
        if not self._gradients:
            self._gradients = tuple(_flat_gradient(module) for module in self._modules)
        return self._gradients


class CompiledTape:
    """`Differentiable`, compiled: one such MLP."""

    def __init__(self, module: MLP, *, learns: bool = True) -> None:
        self._tapes = CompiledTapes([module], learns=learns)

    def forward(self, x: Array) -> Array:
        return self._tapes.forward(x)[0]

    def backward(self, gradient: Array) -> None:
        self._tapes.backward([gradient])


def _live(module: MLP) -> Any:
    """The kernels' side of a module's parameters."""
    found = kernels()
    assert found is not None
    layers = tuple((layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in module.linears())
    return found.MLP(layers, module.activation is Activation.TANH)


def _flat_gradient(module: MLP) -> Array:
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


def has_kernels(*modules: MLP) -> bool:
    """Whether there are kernels, and they know MLPs as deep as these."""
    found = kernels()
    return found is not None and all(len(module.linears()) <= found.MAX_LAYERS for module in modules)


def as_rows(x: Array) -> Array:
    """`x` as the kernels take it."""
    return np.ascontiguousarray(x, np.float32)


def as_inputs(x: Array | SharedRows, num_rows: int) -> tuple[tuple[tuple[Array, Array | None], ...], bool]:
    """The same in parts, and whether they are better factored where `num_rows` of them pass a network together."""
    if not isinstance(x, SharedRows):
        return ((as_rows(x), None),), False
    parts = tuple((as_rows(part.table), np.ascontiguousarray(part.line, np.int64)) for part in x.parts)
    return parts, x.pays_factored(num_rows)
