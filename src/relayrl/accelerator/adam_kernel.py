"""A step of Adam in one call of the kernels, for optimisers of networks that no kernel trains as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.compiled.loader import kernels, num_threads


def accelerate_steps(optimizers: Iterable[FlatAdam]) -> None:
    """Have a kernel take the steps of optimisers, where there is one for them."""
    for adam in optimizers:
        adam.kernel = adam_step if kernels() is not None and adam.vector.device.type == "cpu" else None


def adam_step(adam: FlatAdam) -> float:
    """`FlatAdam.step` in one call; the kernels must be there."""
    module = kernels()
    assert module is not None
    state = (tensor.numpy() for tensor in (adam.vector, adam.gradient, adam.first_moment, adam.second_moment))
    rates = adam.lr, BETA1, BETA2, adam.epsilon, adam.max_norm
    norm: float = module.adam_step(*state, adam.num_steps, *rates, num_threads())
    adam.num_steps += 1
    return norm
