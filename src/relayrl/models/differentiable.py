"""Networks as functions with derivatives, rows in and rows out, in NumPy arrays.

An algorithm that writes its loss's derivative down needs three things of a network: its outputs, the gradient of its
parameters and that of what rows have of their own (an action), given the gradient of the outputs. MLPs on the CPU give
them by compiled kernels (`compiled_perceptron.CompiledTape`) or in NumPy (`perceptron.NumpyPerceptron`); every other module
through autograd. Networks that see the same inputs, such as twin critics, are `Differentiables`: the kernels give each of them
a thread, and lay nothing out that rows share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.data.trees import Array
from relayrl.models.compiled_perceptron import CompiledTape, CompiledTapes, has_kernels
from relayrl.models.mlp_policy import runs_in_numpy
from relayrl.models.perceptron import NumpyPerceptron, Perceptron
from relayrl.models.shared_rows import OwnColumns, SharedRows, laid_out, with_own


class Differentiable(Protocol):
    """A network whose outputs and gradients are of its last `forward`."""

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of `x` [M, I]; valid until the next call."""

    def backward(self, gradient: Array) -> None:
        """Write the parameters' gradients into their `.grad`, given that of the outputs [M, O]."""


class Judge(Differentiable, Protocol):
    """One whose rows may share parts, and have numbers of their own."""

    def forward(self, x: Array | SharedRows) -> Array: ...

    def own_gradient(self, gradient: Array, own: OwnColumns) -> Array:
        """[M, A] the gradient of what rows had of their own, given that of the outputs; the parameters' stays as it is."""


class Differentiables(Protocol):
    """Networks with the same inputs `x` [M, I]; as `Differentiable`, with an array for each."""

    def forward(self, x: Array | SharedRows) -> Sequence[Array]: ...

    def regress(self, x: Array | SharedRows, target: Array, share: Array) -> tuple[Sequence[Array], float]:
        """Outputs [M, O] of `x`, and the sum of each network's loss Σ ½ `share` (output − `target`)²; gradients in `.grad`."""

    def lowest(self, x: Array | SharedRows, own: OwnColumns, share: Array) -> tuple[Array, Array]:
        """[M] the lowest of the networks' single outputs for `x` with `own`, and [M, A] the gradient of Σ `share` lowest by
        `own`."""


class OneAfterTheOther:
    """`Differentiables` of any kind."""

    def __init__(self, networks: Sequence[Judge]) -> None:
        self._networks = networks

    def forward(self, x: Array | SharedRows) -> list[Array]:
        return [network.forward(x) for network in self._networks]

    def regress(self, x: Array | SharedRows, target: Array, share: Array) -> tuple[list[Array], float]:
        outputs = self.forward(x)
        errors = [output - target for output in outputs]
        for network, error in zip(self._networks, errors, strict=True):
            network.backward(error * share)
        return outputs, sum(0.5 * float(np.vdot(error * error, share)) for error in errors)

    def lowest(self, x: Array | SharedRows, own: OwnColumns, share: Array) -> tuple[Array, Array]:
        values = np.stack([output[:, 0] for output in self.forward(with_own(x, own))])
        which = values.argmin(0)
        shares = [(share * (which == i))[:, None] for i in range(len(self._networks))]
        by_own = [network.own_gradient(part, own) for network, part in zip(self._networks, shares, strict=True)]
        return values.min(0), np.asarray(np.add.reduce(by_own))


class AutogradNetwork:
    """Any module, differentiated by torch.

    Rows that share parts are laid out. Where they are too many to be so at once, they pass the module piece by piece, and once
    more for each gradient: only one piece at a time takes memory.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._x: Array | SharedRows = np.empty(0)
        self._kept: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Array | SharedRows) -> Array:
        is_in_pieces = isinstance(x, SharedRows) and x.num_pieces > 1
        self._x, self._kept = x, None
        if self._parameters and not is_in_pieces:
            self._kept = self._pass(laid_out(x))
            return np.asarray(self._kept[1].detach().numpy())
        with torch.no_grad():
            return np.concatenate([self._module(torch.from_numpy(piece)).numpy() for piece in _pieces(x)])

    def backward(self, gradient: Array) -> None:
        if not self._parameters:
            return
        sums = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        for total in sums:
            total.zero_()
        for _, output, by_output in self._passes(gradient):
            for total, own in zip(sums, _pulled_back(output, by_output, self._parameters), strict=True):
                total.add_(own)

    def own_gradient(self, gradient: Array, own: OwnColumns) -> Array:
        columns, first, parts = own.columns, 0, []
        for x, output, by_output in self._passes(gradient):
            by_input = _pulled_back(output, by_output, [x])[0].numpy()
            parts.append(np.take_along_axis(by_input, columns[first : (first := first + len(x))], 1))
        return np.concatenate(parts)

    def _pass(self, x: Array) -> tuple[Tensor, Tensor]:
        """Rows as what gradients are taken by, and their outputs."""
        given = torch.from_numpy(x).detach().requires_grad_()
        return given, self._module(given)

    def _passes(self, gradient: Array) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, their outputs and the gradient of these: those of the last `forward`, or piece by piece again."""
        by_output, first = torch.from_numpy(np.ascontiguousarray(gradient)), 0
        for x, output in [self._kept] if self._kept is not None else map(self._pass, _pieces(self._x)):
            yield x, output, by_output[first : (first := first + len(x))]


def _pieces(x: Array | SharedRows) -> Iterator[Array]:
    return x.pieces() if isinstance(x, SharedRows) else iter([x])


def _pulled_back(output: Tensor, by_output: Tensor, sources: list[Tensor] | list[nn.Parameter]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(output, sources, by_output, allow_unused=True, materialize_grads=True)


def differentiable(module: nn.Module, *, learns: bool = True) -> Differentiable:
    """The fastest way to differentiate a network; one that does not learn has no `backward`."""
    if not runs_in_numpy(module, learns=learns):
        return AutogradNetwork(module)
    assert isinstance(module, Perceptron)
    return CompiledTape(module, learns=learns) if has_kernels(module) else NumpyPerceptron(module)


def differentiables(modules: Sequence[nn.Module], *, learns: bool = True) -> Differentiables:
    """The fastest way to differentiate networks that see the same inputs; those that do not learn have no `regress`."""
    if not runs_in_numpy(*modules, learns=learns):
        return OneAfterTheOther([AutogradNetwork(module) for module in modules])
    perceptrons = [module for module in modules if isinstance(module, Perceptron)]
    if not has_kernels(*perceptrons):
        return OneAfterTheOther([NumpyPerceptron(module) for module in perceptrons])
    return CompiledTapes(perceptrons, learns=learns)
