"""Adam whose step asks the host nothing: rate, step count and whether to step at all are tensors beside the parameters.

The vectors are a `FlatAdam`'s, which saves and restores them; `pull` and `push` keep its step count in line.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam, adam_


class DeviceAdam:
    """Steps a `FlatAdam`'s parameters; can be captured in a CUDA graph."""

    def __init__(self, flat: FlatAdam) -> None:
        self.flat = flat
        self.lr = flat.vector.new_full((1,), flat.lr)
        self.num_steps = torch.full((1,), float(flat.num_steps), dtype=torch.float64, device=flat.vector.device)

    def pull(self) -> None:
        """Give the step count to the `FlatAdam`, before its state is taken."""
        self.flat.num_steps = int(self.num_steps.item())

    def push(self) -> None:
        """Take the step count from the `FlatAdam`, after its state was loaded."""
        self.num_steps.fill_(float(self.flat.num_steps))

    @torch.no_grad()
    def step(self, keep: Tensor) -> Tensor:
        """Clip, then step, as `FlatAdam.step`; where `keep` [1] is 0, everything stays as it is. Gives the norm [1]."""
        own = self.flat
        norm: Tensor = torch.linalg.vector_norm(own.gradient).reshape(1)
        if math.isfinite(own.max_norm):
            own.gradient.mul_((own.max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.num_steps += keep
        steps = self.num_steps.clamp(min=1.0)
        correction1, correction2 = ((1.0 - beta**steps).to(own.vector.dtype) for beta in (BETA1, BETA2))
        state = own.vector, own.first_moment, own.second_moment
        before = [tensor.clone() for tensor in state]
        adam_(*state, own.gradient, self.lr / correction1, correction2.sqrt(), own.epsilon)
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(torch.where(keep != 0, tensor, old))
        return norm
