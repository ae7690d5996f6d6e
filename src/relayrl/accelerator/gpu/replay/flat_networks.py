"""Several MLPs of one shape on the same rows as one function of autograd: Q-networks, and policies.

Gradients of parameters go straight to where the optimiser has them (`FlatAdam.gradient`): each network may be differentiated
once between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relayrl.accelerator.gpu.mlp_tiles import MLPShape
from relayrl.accelerator.gpu.replay import layer_by_layer, two_layers


@dataclass(frozen=True, slots=True)
class FlatNetworks:
    """Networks of one shape, each in a flat vector of its own."""

    shape: MLPShape
    vectors: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...] = ()
    """Where the gradients go, of networks that learn."""
    parameters: tuple[Tensor, ...] = ()
    """What the vectors are of those, which autograd descends."""

    def first(self, count: int) -> FlatNetworks:
        """The first of them, whose parameters do not learn."""
        return FlatNetworks(self.shape, self.vectors[:count])

    def __call__(self, x: Tensor) -> Tensor:
        """[Q, M, K] what each gives for rows `[M, F]`."""
        x = x.contiguous()
        if torch.is_grad_enabled() and (self.gradients or x.requires_grad):
            outputs: Tensor = _Forward.apply(self, x, *self.parameters)  # type: ignore[no-untyped-call]
            return outputs
        with torch.no_grad():
            out = self.new_outputs(x)
            for vector, y in zip(self.vectors, out, strict=True):
                if two_layers.are_known(self.shape):
                    two_layers.forward(self.shape, _aligned(vector), x, y, two_layers.Keeps.NOTHING)
                else:
                    layer_by_layer.forward(self.shape, _aligned(vector), x, y)
            return out

    def new_outputs(self, x: Tensor) -> Tensor:
        """[Q, M, K], to be written."""
        return x.new_empty((len(self.vectors), len(x), self.shape.sizes[-1]))


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, networks: FlatNetworks, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.networks, ctx.has_dx, ctx.num_parameters = networks, x.requires_grad, len(parameters)
        shape, ctx.by_two_layers = networks.shape, two_layers.are_known(networks.shape)
        ctx.vectors, out, saved = [_aligned(vector) for vector in networks.vectors], networks.new_outputs(x), []
        keeps = two_layers.Keeps.ALL if networks.gradients else two_layers.Keeps.LAST
        for vector, y in zip(ctx.vectors, out, strict=True):
            if ctx.by_two_layers:
                saved += two_layers.forward(shape, vector, x, y, keeps)
            else:
                saved += layer_by_layer.forward(shape, vector, x, y)
        ctx.save_for_backward(x, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, by_outputs: Tensor) -> tuple[Tensor | None, ...]:
        networks: FlatNetworks = ctx.networks
        x, *saved = ctx.saved_tensors
        dx, each = (torch.empty_like(x) if ctx.has_dx else None), len(saved) // len(networks.vectors)
        way = two_layers.backward if ctx.by_two_layers else layer_by_layer.backward
        for q, (vector, dy) in enumerate(zip(ctx.vectors, by_outputs.contiguous(), strict=True)):
            gradient = networks.gradients[q] if networks.gradients else None
            rows = x, saved[q * each : (q + 1) * each]
            way(networks.shape, vector, gradient, rows, dy, dx, is_added=q > 0)
        return None, dx, *(None for _ in range(ctx.num_parameters))


def _aligned(vector: Tensor) -> Tensor:
    return vector if layer_by_layer.is_aligned(vector) else vector.clone()
