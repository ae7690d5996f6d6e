"""How Q-networks see actions, and how the gradient of what they see returns to the outputs of the policy's network.

A box's actions are scaled to [−1, 1]. A discrete choice is a one-hot vector (several choices: side by side); gradients pass a
drawn one-hot by the straight-through Gumbel-softmax (Jang et al., 2017): the forward pass sees the choice, the backward pass
the softmax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import ConfigError
from relayrl.models.box_heads import LOG_2PI, LOG_STD_MAX, LOG_STD_MIN, BoxHead, DeterministicHead, SquashedGaussianHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.policy import Policy

GUMBEL_TEMPERATURE = 1.0
_LOG_2 = np.float32(np.log(2.0))


class Choice(ABC):
    """What a policy did on rows `[M]`, as the critics see it, and the way back."""

    action: Array  # [M, width]
    logp: Array | float = 0.0  # [M] log-probabilities, 0 for a policy that has none

    @abstractmethod
    def output_gradient(self, by_action: Array, by_logp: Array | float) -> Array:
        """[M, O] a loss's gradient by the network's outputs, given those by `action` [M, width] and by `logp` [M]."""


class ActionCode(ABC):
    """The critic's side of one action space."""

    width: int

    @abstractmethod
    def encode(self, action: Array) -> Array:
        """[..., width] a stored action."""

    @abstractmethod
    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        """What the policy does, given the outputs [M, O] of its network."""


class BoxCode(ActionCode):
    """Actions in units of half the range around the centre: tanh of an output, with or without noise before it."""

    def __init__(self, head: BoxHead) -> None:
        self.width, self._head = head.num_actions, head

    def encode(self, action: Array) -> Array:
        return np.asarray((action - self._head.center) / self._head.half_range, np.float32)

    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        return TanhChoice(outputs) if isinstance(self._head, DeterministicHead) else SquashedChoice(outputs, rng)


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

    def __init__(self, outputs: Array, rng: np.random.Generator) -> None:
        num_actions = outputs.shape[-1] // 2
        mean, given = outputs[..., :num_actions], outputs[..., num_actions:]
        log_std = np.minimum(np.maximum(given, np.float32(LOG_STD_MIN)), np.float32(LOG_STD_MAX))
        self._is_free = log_std == given
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
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


class OneHotCode(ActionCode):
    """One-hot choices, side by side where there are several."""

    def __init__(self, head: CategoricalHead | MultiCategoricalHead) -> None:
        self.head, self.width = head, head.num_outputs
        self._is_single = isinstance(head, CategoricalHead)
        self._parts = [head] if isinstance(head, CategoricalHead) else head.parts
        self.slices = [slice(0, head.num_outputs)] if isinstance(head, CategoricalHead) else head.slices

    def encode(self, action: Array) -> Array:
        columns = action[..., None] if self._is_single else action
        hots = [one_hot(columns[..., i] - part.start, part.num_outputs) for i, part in enumerate(self._parts)]
        return np.concatenate(hots, -1)

    def choose(self, outputs: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        return OneHotChoice(self, self.head.parameters_numpy(outputs, mask), rng)


class OneHotChoice(Choice):
    """A drawn one-hot. Its log-probability is the expectation, −H(π): less variance and the same meaning."""

    def __init__(self, code: OneHotCode, log_probs: Array, rng: np.random.Generator) -> None:
        self._log_probs, self._slices = log_probs, code.slices
        uniform = np.maximum(rng.random(log_probs.shape, dtype=np.float32), np.float32(1e-10))
        noisy = (log_probs - np.log(-np.log(uniform))) / np.float32(GUMBEL_TEMPERATURE)
        self._soft = np.concatenate([_softmax(noisy[..., where]) for where in self._slices], -1)
        hots = [one_hot(self._soft[..., w].argmax(-1), w.stop - w.start) for w in self._slices]
        self.action = np.concatenate(hots, -1)
        self.logp = -code.head.entropy_numpy(log_probs)

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


def one_hot(index: Array, width: int) -> Array:
    """[..., width] ones where `index` points."""
    return np.asarray(index[..., None] == np.arange(width), np.float32)


def _softmax(logits: Array) -> Array:
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weight / weight.sum(-1, keepdims=True))


_HEADS = BuiltIns(DeterministicHead, SquashedGaussianHead, CategoricalHead, MultiCategoricalHead)
_EXPLORERS, _POLICIES = BuiltIns(DeterministicHead), BuiltIns(Policy)


def _require_known(policy: Policy, is_head_known: bool = True) -> None:
    if not is_head_known or not _POLICIES.keeps(policy, "distribution", "distribution_of"):
        changed = type(policy if is_head_known else policy.head).__name__
        raise ConfigError(
            f"{changed} changes the action distribution, and learning from replay differentiates RelayRL's own ones only; "
            "use ppo or reinforce with it"
        )


def action_code(policy: Policy) -> ActionCode:
    """The code of a policy's action space. The derivatives are written out for the built-in heads and know no others."""
    head = policy.head
    if isinstance(head, DeterministicHead) and _EXPLORERS.keeps(head, "parameters", "parameters_numpy"):
        _require_known(policy)
        return BoxCode(head)  # what it adds when it acts is not differentiated
    if isinstance(head, DeterministicHead | SquashedGaussianHead):
        _require_known(policy, head in _HEADS)
        return BoxCode(head)
    if isinstance(head, CategoricalHead | MultiCategoricalHead):
        _require_known(policy, head in _HEADS)
        return OneHotCode(head)
    raise ConfigError(
        f"learning from replay is not possible in action space {policy.action_space}; use ppo or reinforce"
    )
