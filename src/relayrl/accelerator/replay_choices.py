"""What policies do on rows, and the way back: `ActionHead.rsample` in NumPy, with its derivative written out.

The equations are those of the heads. A `Choice` is made from the outputs of a policy's network, and gives a loss's gradient by
these outputs; compiled kernels do the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from relayrl.data.trees import Array
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.box_heads import LOG_2PI, LOG_STD_MAX, LOG_STD_MIN, DeterministicHead, SquashedGaussianHead
from relayrl.models.heads.discrete_heads import (
    GUMBEL_TEMPERATURE,
    CategoricalHead,
    MultiCategoricalHead,
    OneHotHead,
    one_hot,
)
from relayrl.models.networks.built_in import BuiltIns

_LOG_2 = np.float32(np.log(2.0))
_POINT, _SQUASHED = BuiltIns(DeterministicHead), BuiltIns(SquashedGaussianHead)
_ONE_HOT = BuiltIns(CategoricalHead, MultiCategoricalHead)


class Choice(ABC):
    """What a policy does on rows `[M]`, as critics see it, and the way back."""

    action: Array  # [M, width]
    logp: Array | float = 0.0  # [M] log-probabilities, 0 for a policy that has none

    @abstractmethod
    def output_gradient(self, by_action: Array, by_logp: Array | float) -> Array:
        """[M, O] a loss's gradient by the network's outputs, given those by `action` [M, width] and by `logp` [M]."""


class Chooser(ABC):
    """Makes the choices of one head."""

    def __init__(self, head: ActionHead) -> None:
        self._head = head

    @abstractmethod
    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        """What the policy does, given the outputs [M, O] of its network."""


class PointChooser(Chooser):
    """Of a `DeterministicHead`."""

    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        return TanhChoice(outputs)


class SquashedChooser(Chooser):
    """Of a `SquashedGaussianHead`."""

    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        return SquashedChoice(outputs, self._head.draw_noise(len(outputs), rng))


class OneHotChooser(Chooser):
    """Of a `OneHotHead`."""

    _head: OneHotHead

    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        log_probs = self._head.parameters_numpy(outputs, mask)
        return OneHotChoice(self._head, log_probs, self._head.draw_noise(len(outputs), rng))


def chooser_of(head: ActionHead) -> Chooser | None:
    """The twin of a built-in head; None for others."""
    if head in _POINT:
        return PointChooser(head)
    if head in _SQUASHED:
        return SquashedChooser(head)
    return OneHotChooser(head) if head in _ONE_HOT else None


class TanhChoice(Choice):
    """The one action of a deterministic policy."""

    def __init__(self, outputs: Array) -> None:
        self.action = np.tanh(outputs)

    def output_gradient(self, by_action: Array, by_logp: Array | float) -> Array:
        return np.asarray(by_action * (1.0 - self.action * self.action))


class SquashedChoice(Choice):
    """a = tanh(u), u = μ + σ ε;  log π(a) = log N(u) − Σ log(1 − a²).

    1 − a² is computed from u, as 4 e / (1 + e)² with e = exp(−2 |u|): tanh rounds to ±1 from |u| ≈ 9 on.
    """

    def __init__(self, outputs: Array, noise: Array) -> None:
        num_actions = outputs.shape[-1] // 2
        mean, given = outputs[..., :num_actions], outputs[..., num_actions:]
        log_std = np.minimum(np.maximum(given, np.float32(LOG_STD_MIN)), np.float32(LOG_STD_MAX))
        self._is_free = log_std == given
        self._spread = np.exp(log_std) * noise
        u = mean + self._spread
        self.action = np.tanh(u)
        distance = np.abs(u)
        e = np.exp(-2.0 * distance)
        self._slope = 4.0 * e / np.square(1.0 + e)
        log_slope = 2.0 * (_LOG_2 - distance - np.log(1.0 + e))
        normal = -0.5 * noise * noise - log_std - np.float32(0.5 * LOG_2PI)
        self.logp = np.asarray((normal - log_slope).sum(-1))

    def output_gradient(self, by_action: Array, by_logp: Array | float) -> Array:
        # ∂a / ∂u = 1 − a²;   ∂ log π / ∂u = 2 a;   ∂u / ∂ log σ = σ ε;   ∂ log π / ∂ log σ = 2 a σ ε − 1
        by_density = np.asarray(by_logp, np.float32)[..., None]
        by_mean = self._slope * by_action + by_density * 2.0 * self.action
        by_log_std = (by_mean * self._spread - by_density) * self._is_free
        return np.concatenate([by_mean, by_log_std], -1)


class OneHotChoice(Choice):
    """A drawn one-hot, relaxed for the way back."""

    def __init__(self, head: OneHotHead, log_probs: Array, uniform: Array) -> None:
        self._log_probs, self._slices = log_probs, head.slices
        gumbel = -np.log(-np.log(np.maximum(uniform, np.float32(1e-10))))
        noisy = (log_probs + gumbel) / np.float32(GUMBEL_TEMPERATURE)
        self._soft = np.concatenate([_softmax(noisy[..., where]) for where in self._slices], -1)
        hots = [one_hot(self._soft[..., w].argmax(-1), w.stop - w.start) for w in self._slices]
        self.action = np.concatenate(hots, -1)
        self.logp = -head.entropy_numpy(log_probs)

    def output_gradient(self, by_action: Array, by_logp: Array | float) -> Array:
        by_entropy = np.asarray(by_logp, np.float32)[..., None]
        return np.concatenate([self._part_gradient(w, by_action[..., w], by_entropy) for w in self._slices], -1)

    def _part_gradient(self, where: slice, by_action: Array, by_logp: Array) -> Array:
        soft, log_probs = self._soft[..., where], self._log_probs[..., where]
        p = np.exp(log_probs)
        # Back through the softmax of the noisy log-probabilities, then −∂H/∂z = p (log p + H), then log-softmax.
        by_noisy = soft * (by_action - (soft * by_action).sum(-1, keepdims=True)) / np.float32(GUMBEL_TEMPERATURE)
        entropy = -(p * log_probs).sum(-1, keepdims=True)
        return np.asarray(by_noisy - p * by_noisy.sum(-1, keepdims=True) + by_logp * p * (log_probs + entropy))


def _softmax(logits: Array) -> Array:
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weight / weight.sum(-1, keepdims=True))
