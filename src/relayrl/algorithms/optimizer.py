"""Adam as the accelerator steps it."""

from __future__ import annotations

from relayrl.accelerator.array_kernels import adam_step
from relayrl.algorithms.adam import BETA1, BETA2, Adam


class FlatAdam(Adam):
    """`Adam`, by a kernel where there is one."""

    def step(self) -> float:
        norm = adam_step(self, BETA1, BETA2)
        return super().step() if norm is None else norm
