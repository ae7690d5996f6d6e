"""PPO's losses and their gradients for one minibatch, twice: through autograd for any policy, in NumPy for perceptrons.

Both leave the gradients in the parameters' `.grad` and give the same metrics; tests hold them to each other. The losses
themselves, as equations, are in `losses`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from relayrl.algorithms.losses import clipped_surrogate, clipped_value_loss, kl_estimate, value_loss
from relayrl.algorithms.ppo_params import PPOParams
from relayrl.data.trees import Array, map_tree
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.numpy_actor_critic import NumpyActorCritic

Metrics = dict[str, float]


@dataclass(slots=True)
class Batch:
    """Rows that are trained on, flattened to one axis M; features are what the networks see."""

    features: Array
    action: Array
    mask: Array | None
    logp: Array
    advantage: Array
    target: Array
    old_value: Array

    def __len__(self) -> int:
        return len(self.advantage)

    def columns(self) -> tuple[Array | None, ...]:
        """All columns, in the order of the fields."""
        return (self.features, self.action, self.mask, self.logp, self.advantage, self.target, self.old_value)

    def rows(self, where: Any) -> Batch:
        """Some of the rows: a view for a slice, a copy for indices."""
        return Batch(*(None if c is None else c[where] for c in self.columns()))  # type: ignore[arg-type]


class PPOGradients(ABC):
    """Evaluates a policy and differentiates PPO's losses."""

    def __init__(self, policy: ActorCritic, params: PPOParams) -> None:
        self.policy, self.params = policy, params

    @abstractmethod
    def features(self, obs: Any) -> Array:
        """[M, F] what the networks see of observations `[M, …]`."""

    @abstractmethod
    def value(self, features: Array) -> Array:
        """[M] values in units of reward; the caller's to keep."""

    @abstractmethod
    def log_prob(self, features: Array, mask: Array | None, action: Array) -> Array:
        """[M] log-probabilities of actions; the caller's to keep."""

    @abstractmethod
    def policy_gradient(self, rows: Batch) -> Metrics | None:
        """Differentiate the policy's loss; None, and no gradient, where the KL estimate exceeds 1.5 × `target_kl`."""

    @abstractmethod
    def value_gradient(self, rows: Batch) -> Metrics:
        """Differentiate the value's loss."""

    def exceeds_target(self, kl: float) -> bool:
        """Whether the policy has moved too far from the one that acted."""
        return self.params.target_kl is not None and kl > 1.5 * self.params.target_kl


class AutogradGradients(PPOGradients):
    """For any policy: plain torch."""

    @torch.no_grad()
    def features(self, obs: Any) -> Array:
        return np.asarray(self.policy.features(map_tree(torch.from_numpy, obs)).numpy())

    @torch.no_grad()
    def value(self, features: Array) -> Array:
        return np.asarray(self.policy.value(torch.from_numpy(features)).numpy())

    @torch.no_grad()
    def log_prob(self, features: Array, mask: Array | None, action: Array) -> Array:
        distribution = self.policy.distribution(torch.from_numpy(features), _tensor(mask))
        return np.asarray(self.policy.head.log_prob(distribution, torch.from_numpy(action)).numpy())

    def policy_gradient(self, rows: Batch) -> Metrics | None:
        head, params = self.policy.head, self.params
        distribution = self.policy.distribution(torch.from_numpy(rows.features), _tensor(rows.mask))
        logp = head.log_prob(distribution, torch.from_numpy(rows.action))
        log_ratio = logp - torch.from_numpy(rows.logp)
        ratio = log_ratio.exp()
        kl = float(kl_estimate(log_ratio.detach(), ratio.detach()))
        if self.exceeds_target(kl):
            return None
        loss = clipped_surrogate(ratio, torch.from_numpy(rows.advantage), params.clip_ratio)
        entropy = head.entropy(distribution).mean()
        for parameter in self.policy.actor_parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        (loss - params.entropy_coef * entropy).backward()  # type: ignore[no-untyped-call]
        clipped = float(((ratio.detach() - 1.0).abs() > params.clip_ratio).float().mean())
        return _policy_metrics(float(loss.detach()), kl, float(entropy.detach()), clipped)

    def value_gradient(self, rows: Batch) -> Metrics:
        value = self.policy.normalized_value(torch.from_numpy(rows.features))
        target = torch.from_numpy(rows.target)
        if self.params.value_clip is None:
            loss = value_loss(value, target)
        else:
            loss = clipped_value_loss(value, torch.from_numpy(rows.old_value), target, self.params.value_clip)
        for parameter in self.policy.critic_parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        return {"value/loss": float(loss.detach())}


class NumpyGradients(PPOGradients):
    """For perceptrons on the CPU: the same derivatives, written out."""

    def __init__(self, policy: ActorCritic, params: PPOParams) -> None:
        super().__init__(policy, params)
        self._numpy = NumpyActorCritic(policy)

    def features(self, obs: Any) -> Array:
        return self._numpy.features(obs)

    def value(self, features: Array) -> Array:
        return self._numpy.value(features).copy()

    def log_prob(self, features: Array, mask: Array | None, action: Array) -> Array:
        return self.policy.head.log_prob_numpy(self._numpy.distribution(features, mask), action).copy()

    def policy_gradient(self, rows: Batch) -> Metrics | None:
        head, clip, advantage = self.policy.head, self.params.clip_ratio, rows.advantage
        parameters = self._numpy.distribution(rows.features, rows.mask)
        log_ratio = head.log_prob_numpy(parameters, rows.action) - rows.logp
        ratio = np.exp(log_ratio)
        kl = float((ratio - 1.0 - log_ratio).mean())
        if self.exceeds_target(kl):
            return None
        surrogate = ratio * advantage
        clipped_surrogate = np.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage
        # −min(r Â, clip(r) Â) has slope −r Â in log r where the first is the smaller, and 0 where the clip holds.
        is_free = surrogate <= clipped_surrogate
        by_logp = surrogate * is_free * np.float32(-1.0 / len(rows))
        self._numpy.backward_distribution(parameters, rows.action, by_logp, -self.params.entropy_coef / len(rows))
        loss = -float(np.minimum(surrogate, clipped_surrogate).mean())
        clip_fraction = float((np.abs(ratio - 1.0) > clip).mean())
        return _policy_metrics(loss, kl, float(head.entropy_numpy(parameters).mean()), clip_fraction)

    def value_gradient(self, rows: Batch) -> Metrics:
        value, clip = self._numpy.normalized_value(rows.features), self.params.value_clip
        error = value - rows.target
        square = error * error
        if clip is not None:
            step = value - rows.old_value
            moved = rows.old_value + np.clip(step, -clip, clip) - rows.target
            moved_square = moved * moved
            # Where the clipped loss is the larger, it has a slope only while the value is inside the clip.
            error = np.where(square >= moved_square, error, moved * (np.abs(step) < clip))
            square = np.maximum(square, moved_square)
        self._numpy.backward_value(error * np.float32(1.0 / len(rows)))
        return {"value/loss": 0.5 * float(square.mean())}


def ppo_gradients(policy: ActorCritic, params: PPOParams) -> PPOGradients:
    """The fastest way to differentiate this policy."""
    return (NumpyGradients if NumpyActorCritic.supports(policy) else AutogradGradients)(policy, params)


def _tensor(array: Array | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


def _policy_metrics(loss: float, kl: float, entropy: float, clip_fraction: float) -> Metrics:
    return {
        "policy/loss": loss,
        "policy/kl": kl,
        "policy/entropy": entropy,
        "policy/clip_fraction": clip_fraction,
    }
