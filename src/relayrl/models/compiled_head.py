"""Actions drawn by the compiled kernels: forward pass and draw in one call, from the same random numbers as the heads."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array
from relayrl.models.action_head import ActionHead, Distribution, HeadDescription
from relayrl.models.box_heads import GaussianHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.compiled_perceptron import CompiledPerceptron, as_rows, compiled_network
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.perceptron import Perceptron
from relayrl.models.policy import Policy

_HEADS = BuiltIns(CategoricalHead, MultiCategoricalHead, GaussianHead)


def has_kernels(head: ActionHead) -> bool:
    """Whether there are kernels, and they know the head."""
    found = kernels()
    return found is not None and head in _HEADS and len(head.part_sizes) <= found.MAX_PARTS


class CompiledHead(ABC):
    """Draws what the policy's head would draw."""

    @abstractmethod
    def draw(self, features: Array, mask: Array | None, rng: np.random.Generator, logp: Array | None) -> Array:
        """Actions of rows `[M, F]`; their log-probabilities go into `logp` [M]."""


class CompiledChoices(CompiledHead):
    """Of a categorical head, or of several side by side."""

    def __init__(self, network: CompiledPerceptron, head: HeadDescription) -> None:
        self._choose, self._parts = network.network.choose, head.part_sizes
        is_single = head.distribution is Distribution.CHOICE
        self._shape = () if is_single else (len(self._parts),)
        self._start = (head.starts[0] if is_single else np.array(head.starts)) if any(head.starts) else None

    def draw(self, features: Array, mask: Array | None, rng: np.random.Generator, logp: Array | None) -> Array:
        num_rows = len(features)
        choice: Array = np.empty((num_rows, *self._shape), np.int64)
        draws = rng.random((*self._shape, num_rows), np.float32)
        allowed = None if mask is None else np.ascontiguousarray(mask)
        self._choose(as_rows(features), self._parts, draws, allowed, choice, logp, num_threads())
        return choice if self._start is None else choice + self._start


class CompiledNormal(CompiledHead):
    """Of a `GaussianHead`."""

    def __init__(self, network: CompiledPerceptron, head: HeadDescription, policy: Policy) -> None:
        scale, center = head.scales["action_scale"], head.scales["action_center"]
        self._draw_normal, self._num_actions = network.network.draw_normal, len(scale)
        self._scales = (policy.log_std.detach().numpy(), scale, center)

    def draw(self, features: Array, mask: Array | None, rng: np.random.Generator, logp: Array | None) -> Array:
        noise = rng.standard_normal((len(features), self._num_actions), np.float32)
        action = np.empty_like(noise)
        self._draw_normal(as_rows(features), noise, *self._scales, action, logp, num_threads())
        return action


def compiled_head(policy: Policy) -> CompiledHead | None:
    """The compiled draw of a policy of MLPs; None where there are no kernels for it."""
    head = policy.head.describe()
    if head is None or not has_kernels(policy.head):
        return None
    assert isinstance(policy.actor, Perceptron)
    network = compiled_network(policy.actor)
    if network is None:
        return None
    if head.distribution is Distribution.NORMAL:
        return CompiledNormal(network, head, policy)
    return CompiledChoices(network, head)
