"""An optimiser over one flat vector: the parameters of a loss become views of it, so a step is a handful of calls.

With a dozen small tensors per network, per-tensor overhead of clipping and Adam costs more than the arithmetic. The
numbers are those of `torch.optim.Adam` and `clip_grad_norm_` on the separate tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class FlatAdam:
    """Adam with optional gradient clipping by global norm, over parameters that it lays out in one vector."""

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, max_grad_norm: float | None) -> None:
        self._max_grad_norm = max_grad_norm
        self._flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
        self._flat.grad = torch.zeros_like(self._flat)
        offset = 0
        for p in parameters:
            where = slice(offset, offset + p.numel())
            p.data = self._flat.data[where].view_as(p)
            p.grad = self._flat.grad[where].view_as(p)
            offset += p.numel()
        # Owners of the parameters write gradients through these views; they must stay the ones laid out here.
        self._views = list(parameters)
        self._adam = torch.optim.Adam([self._flat], lr=lr, eps=1e-5, fused=True)

    @property
    def gradient(self) -> Tensor:
        """The flat gradient, written by `backward` on the parameters."""
        assert self._flat.grad is not None
        return self._flat.grad

    def set_lr(self, lr: float) -> None:
        """Use another learning rate from now on."""
        self._adam.param_groups[0]["lr"] = lr

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.gradient.zero_()

    def step(self) -> float:
        """Clip, then step; gives the gradient's norm before clipping."""
        norm = float(torch.linalg.vector_norm(self.gradient))
        if self._max_grad_norm is not None and norm > self._max_grad_norm:
            self.gradient.mul_(self._max_grad_norm / (norm + 1e-6))
        self._adam.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count."""
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._adam.load_state_dict(state)
