"""Kernels on plain arrays: advantages of a block of rows, and a step of Adam."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from torch import Tensor

from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array


class AdamState(Protocol):
    """What the kernels read of an optimiser over one flat vector, and `num_steps`, which they count on."""

    vector: Tensor
    gradient: Tensor
    first_moment: Tensor
    second_moment: Tensor
    num_steps: int
    lr: float
    epsilon: float
    max_grad_norm: float | None


def max_norm(adam: AdamState) -> float:
    """Where the gradient's norm is clipped."""
    return math.inf if adam.max_grad_norm is None else adam.max_grad_norm


def adam_step(adam: AdamState, beta1: float, beta2: float) -> float | None:
    """Clip and step; returns the gradient's norm before clipping. None where there are no kernels for it."""
    module = kernels()
    if module is None or adam.vector.device.type != "cpu":
        return None
    state = (tensor.numpy() for tensor in (adam.vector, adam.gradient, adam.first_moment, adam.second_moment))
    rates = adam.lr, beta1, beta2, adam.epsilon, max_norm(adam)
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
) -> Array | None:
    """[T, L] as `algorithms.returns.gae`; None where a lane does not act on every row, or there are no kernels."""
    module = kernels()
    if module is None or not valid.all():
        return None
    out = np.empty(reward.shape, np.float32)
    columns = [np.ascontiguousarray(column, np.float32) for column in (reward, value, next_value)]
    flags = [np.ascontiguousarray(flag, np.bool_) for flag in (terminated, truncated)]
    module.advantages(*reward.shape, *columns, *flags, gamma, lam, out)
    return out
