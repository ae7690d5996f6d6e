"""A step of Adam in one call of the kernels, for optimisers of networks that no kernel trains as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.compiled.loader import kernels, num_threads


def accelerate_steps(optimizers: Iterable[FlatAdam]) -> None:
    """Have a kernel take the steps of optimisers, where there is one for them."""
    module = kernels()
    for adam in optimizers:
        adam.kernel = AdamKernel(adam, module) if module is not None and adam.vector.device.type == "cpu" else None


class AdamKernel:
    """`FlatAdam.step` in one call, for an optimiser whose tensors stay where they are."""

    def __init__(self, adam: FlatAdam, module: ModuleType) -> None:
        state = adam.vector, adam.gradient, adam.first_moment, adam.second_moment
        self._step, self._arrays = module.adam_step, tuple(tensor.numpy() for tensor in state)

    def __call__(self, adam: FlatAdam) -> float:
        rates = adam.lr, BETA1, BETA2, adam.epsilon, adam.max_norm
        norm: float = self._step(*self._arrays, adam.num_steps, *rates, num_threads())
        adam.num_steps += 1
        return norm
