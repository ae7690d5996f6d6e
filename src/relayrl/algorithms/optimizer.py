"""Adam over one flat vector: the parameters of a loss become views of it, so a step is a handful of calls.

With a dozen small tensors per network, per-tensor overhead of clipping and Adam costs more than the arithmetic. The
numbers are those of `torch.optim.Adam` and `clip_grad_norm_` on the separate tensors; tests hold them to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relayrl.errors import ConfigError
from relayrl.models.networks.one_thread import one_thread

BETA1, BETA2 = 0.9, 0.999
POLICY_GRADIENT_EPSILON, USUAL_EPSILON = 1e-5, 1e-8
"""Adam's own epsilon, and the larger one that is customary for policy gradients."""


class FlatAdam:
    """Adam (Kingma & Ba, 2015) with optional clipping of the gradient's norm, over parameters that it lays out itself."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        max_grad_norm: float | None,
        epsilon: float = POLICY_GRADIENT_EPSILON,
    ) -> None:
        require_distinct(parameters)
        self.lr, self.epsilon = lr, epsilon
        self.max_norm = math.inf if max_grad_norm is None else max_grad_norm
        self.vector = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.vector)
        self.first_moment, self.second_moment = torch.zeros_like(self.vector), torch.zeros_like(self.vector)
        self.num_steps = 0
        self.kernel: Callable[[FlatAdam], float | Tensor] | None = None
        """What takes the steps instead of torch, where the accelerator was asked for it."""
        offset = 0
        for p in parameters:
            where = slice(offset, offset + p.numel())
            p.data = self.vector[where].view_as(p)
            p.grad = self.gradient[where].view_as(p)
            offset += p.numel()

    def step(self) -> float | Tensor:
        """Clip, then step; returns the gradient's norm before clipping, on a GPU as a tensor that nobody has waited for."""
        return self._step_in_torch() if self.kernel is None else self.kernel(self)

    @torch.no_grad()
    def _step_in_torch(self) -> float | Tensor:
        gradient, m, v = self.gradient, self.first_moment, self.second_moment
        with one_thread():
            norm: float | Tensor = torch.linalg.vector_norm(gradient)
        if gradient.device.type == "cpu":
            norm = float(norm)
            if norm > self.max_norm:
                gradient.mul_(self.max_norm / (norm + 1e-6))
        elif math.isfinite(self.max_norm):
            gradient.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))  # type: ignore[union-attr]
        self.num_steps += 1
        correction1, correction2 = 1.0 - BETA1**self.num_steps, 1.0 - BETA2**self.num_steps
        adam_(self.vector, m, v, gradient, self.lr / correction1, math.sqrt(correction2), self.epsilon)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count."""
        return {"first_moment": self.first_moment, "second_moment": self.second_moment, "num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.first_moment.copy_(state["first_moment"])
        self.second_moment.copy_(state["second_moment"])
        self.num_steps = state["num_steps"]


def adam_(
    vector: Tensor, m: Tensor, v: Tensor, gradient: Tensor, rate: float | Tensor, root: float | Tensor, epsilon: float
) -> None:
    """One step in place; `rate` is α / (1 − β₁ᵗ) and `root` is √(1 − β₂ᵗ), both numbers of the host or both tensors."""
    # m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  θ ← θ − α m̂ / (√v̂ + ε)
    m.lerp_(gradient, 1.0 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
    denominator = v.sqrt().div_(root).add_(epsilon)
    if isinstance(rate, Tensor):
        vector.sub_(m.div(denominator).mul_(rate))
    else:
        vector.addcdiv_(m, denominator, value=-rate)


def require_distinct(*several: Sequence[nn.Parameter]) -> None:
    """Raise where a parameter is trained twice: it can lie in one vector only, and steps in the other would be lost."""
    ids = [id(parameter) for parameters in several for parameter in parameters]
    if len(set(ids)) < len(ids):
        raise ConfigError(
            "networks that are trained by different losses share a parameter; make a network of its own for each, with the "
            "shared layers in both"
        )
