"""Kernels on plain arrays: advantages of a block of rows, and a step of Adam."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from relayrl.algorithms import returns
from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array


def max_norm(adam: FlatAdam) -> float:
    """Where the gradient's norm is clipped."""
    return math.inf if adam.max_grad_norm is None else adam.max_grad_norm


def accelerate_steps(optimizers: Iterable[FlatAdam]) -> None:
    """Have a kernel take the steps of optimisers, where there is one for them."""
    for adam in optimizers:
        adam.kernel = adam_step if kernels() is not None and adam.vector.device.type == "cpu" else None


def adam_step(adam: FlatAdam) -> float:
    """`FlatAdam.step` in one call; the kernels must be there."""
    module = kernels()
    assert module is not None
    state = (tensor.numpy() for tensor in (adam.vector, adam.gradient, adam.first_moment, adam.second_moment))
    rates = adam.lr, BETA1, BETA2, adam.epsilon, max_norm(adam)
    norm: float = module.adam_step(*state, adam.num_steps, *rates, num_threads())
    adam.num_steps += 1
    return norm


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    gamma: float,
    lam: float,
) -> Array:
    """`returns.gae`, in one call where every lane acts on every row."""
    module = kernels()
    if module is None or not valid.all():
        columns = reward, value, next_value, terminated, truncated, valid
        return returns.gae(*columns, gamma=gamma, lam=lam)
    out = np.empty(reward.shape, np.float32)
    numbers = [np.ascontiguousarray(column, np.float32) for column in (reward, value, next_value)]
    flags = [np.ascontiguousarray(flag, np.bool_) for flag in (terminated, truncated)]
    module.advantages(*reward.shape, *numbers, *flags, gamma, lam, out)
    return out
