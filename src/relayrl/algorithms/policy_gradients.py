"""Gradients of an actor and a critic for one minibatch: through autograd for any policy, in NumPy for MLPs on the CPU.

Both classes write gradients into the parameters' `.grad` and return the same metrics; tests hold them to each other. Two more
implementations are elsewhere: `recurrent_gradients` for policies with a memory, and `compiled_passes`, which takes all gradient
steps of an update in the compiled kernels and is used wherever it can be. The losses, as equations, are in `losses`; which one
an algorithm minimises is its `PolicyLoss`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.joint_observations import CentralInputs
from relayrl.algorithms.losses import clipped_surrogate, clipped_value_loss, kl_estimate, log_likelihood, value_loss
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.built_in import BuiltIns
from relayrl.models.numpy_policy import DifferentiableActorCritic, NumpyActorCritic
from relayrl.models.shared_rows import SharedRows, laid_out

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
    central: SharedRows | None = None  # what a central critic sees instead of the features

    @property
    def critic_features(self) -> Array | SharedRows:
        """What the critic sees."""
        return self.features if self.central is None else self.central

    def __len__(self) -> int:
        return len(self.advantage)

    def columns(self) -> tuple[Array | SharedRows | None, ...]:
        """All columns, in the order of the fields."""
        own = (self.features, self.action, self.mask, self.logp, self.advantage, self.target, self.old_value)
        return (*own, self.central)

    def rows(self, where: Any) -> Batch:
        """Some of the rows: a view for a slice, a copy for indices."""
        return Batch(*(None if c is None else c[where] for c in self.columns()))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """The rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = [_joined(same) for same in zip(*(part.columns() for part in parts), strict=True)]
        return Batch(*columns)  # type: ignore[arg-type]


def _joined(columns: Sequence[Array | SharedRows | None]) -> Array | SharedRows | None:
    shared = [column for column in columns if isinstance(column, SharedRows)]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if shared:
        return SharedRows.joined(shared)
    return np.concatenate(arrays) if arrays else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy makes of a rollout, before it is changed: rows M = T · L, and the K successors of the rollout."""

    features: Array  # [M, F]
    central: SharedRows | None  # [M, C] what a central critic sees instead
    value: Array  # [T, L] in units of reward
    successor_value: Array  # [K]
    logp: Array  # [M] of the actions, as recorded or as the policy has it


class PolicyLoss(ABC):
    """A loss of log-probabilities, given as `log_ratio = log π(a) − log π_old(a)`."""

    @abstractmethod
    def loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """The loss, for autograd."""

    def loss_and_slope(self, log_ratio: Array, advantage: Array) -> tuple[float, Array]:
        """The same loss, and its derivative by each row's log-probability; a twin of `loss` that only built-in losses need."""
        given = torch.from_numpy(log_ratio).requires_grad_()
        loss = self.loss(given, torch.from_numpy(advantage))
        (slope,) = torch.autograd.grad(loss, [given])
        return float(loss.detach()), np.asarray(slope.numpy())

    @abstractmethod
    def clip_fraction(self, ratio: Array) -> float:
        """Share of rows that the loss clips."""


@dataclass(frozen=True, slots=True)
class ClippedSurrogate(PolicyLoss):
    """PPO's: −E[min(r Â, clip(r, 1 ± ε) Â)]."""

    clip_ratio: float

    def loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return clipped_surrogate(log_ratio.exp(), advantage, self.clip_ratio)

    def loss_and_slope(self, log_ratio: Array, advantage: Array) -> tuple[float, Array]:
        ratio = np.exp(log_ratio)
        free = ratio * advantage
        clipped = np.clip(ratio, 1.0 - self.clip_ratio, 1.0 + self.clip_ratio) * advantage
        # The slope in log r is −r Â where the free term is the smaller, and 0 where the clip holds.
        slope = free * (free <= clipped) * np.float32(-1.0 / len(advantage))
        return -float(np.minimum(free, clipped).mean()), slope

    def clip_fraction(self, ratio: Array) -> float:
        return float((np.abs(ratio - 1.0) > self.clip_ratio).mean())


@dataclass(frozen=True, slots=True)
class LogLikelihood(PolicyLoss):
    """REINFORCE's: −E[log π(a) Â]."""

    def loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return log_likelihood(log_ratio, advantage)

    def loss_and_slope(self, log_ratio: Array, advantage: Array) -> tuple[float, Array]:
        return -float((log_ratio * advantage).mean()), advantage * np.float32(-1.0 / len(advantage))

    def clip_fraction(self, ratio: Array) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: a policy loss with an entropy bonus, a value loss, and how far the policy may move."""

    policy_loss: PolicyLoss
    entropy_coef: float
    value_clip: float | None = None
    target_kl: float | None = None

    def is_exceeded_by(self, kl: float) -> bool:
        """Whether the policy has moved too far from the one that acted."""
        return self.target_kl is not None and kl > 1.5 * self.target_kl


LOSSES, OBJECTIVES = BuiltIns(ClippedSurrogate, LogLikelihood), BuiltIns(Objective)
"""What NumPy and the kernels differentiate; everything else goes through `PolicyLoss.loss` and autograd."""


class Gradients(ABC):
    """Evaluates a policy and differentiates an objective."""

    def __init__(self, policy: ActorCritic, objective: Objective) -> None:
        self.policy, self.objective = policy, objective

    @abstractmethod
    def features(self, obs: Any) -> Array:
        """[M, F] what the networks see of observations `[M, …]`."""

    @abstractmethod
    def value(self, seen: Array | SharedRows) -> Array:
        """[M] values, in units of reward, of what the critic sees; the caller's to keep."""

    @abstractmethod
    def log_prob(self, features: Array, mask: Array | None, action: Array) -> Array:
        """[M] log-probabilities of actions; the caller's to keep."""

    @abstractmethod
    def policy_gradient(self, rows: Batch) -> Metrics | None:
        """Differentiate the policy's loss; None, and no gradient, where the KL estimate exceeds 1.5 × `target_kl`."""

    @abstractmethod
    def value_gradient(self, rows: Batch) -> Metrics:
        """Differentiate the value's loss."""

    def judge(self, rollout: Rollout, central: CentralInputs | None) -> Judgement:
        """Values and log-probabilities of a rollout; `central` is what a central critic sees of it."""
        features = self.features(flat_rows(rollout.obs))
        if central is None:
            value, successor_value = self.value(features), self.value(self.features(rollout.successors.obs))
        else:
            value, successor_value = self.value(central.rows), self.value(central.successors)
        if rollout.logp is None:
            logp = self.log_prob(features, flat_rows(rollout.action_mask), flat_rows(rollout.action))
        else:
            logp = flat_rows(rollout.logp)
        seen = None if central is None else central.rows
        return Judgement(features, seen, value.reshape(rollout.reward.shape), successor_value, logp)

    def batch(self, rollout: Rollout, judged: Judgement, advantage: Array, usable: Array) -> Batch:
        """The rows of a rollout that are `usable` [T, L], for training on its `advantage` [T, L]."""
        batch = all_rows(rollout, judged, advantage)
        return batch if usable.all() else batch.rows(usable.reshape(-1))

    def state_dict(self) -> dict[str, Any]:
        """What must outlive an update, besides the policy."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to keep
        """Continue from `state_dict`."""


class AutogradGradients(Gradients):
    """For any policy: plain torch."""

    @torch.no_grad()
    def features(self, obs: Any) -> Array:
        return np.asarray(self.policy.features(map_tree(torch.from_numpy, obs)).numpy())

    @torch.no_grad()
    def value(self, seen: Array | SharedRows) -> Array:
        pieces = seen.pieces() if isinstance(seen, SharedRows) else [seen]
        return np.concatenate([self.policy.value(torch.from_numpy(piece)).numpy() for piece in pieces])

    @torch.no_grad()
    def log_prob(self, features: Array, mask: Array | None, action: Array) -> Array:
        distribution = self.policy.distribution(torch.from_numpy(features), tensor_or_none(mask))
        return np.asarray(self.policy.head.log_prob(distribution, torch.from_numpy(action)).numpy())

    def policy_gradient(self, rows: Batch) -> Metrics | None:
        return self.differentiate_policy(
            self.policy.distribution(torch.from_numpy(rows.features), tensor_or_none(rows.mask)), rows
        )

    def value_gradient(self, rows: Batch) -> Metrics:
        seen = torch.from_numpy(laid_out(rows.critic_features))
        return self.differentiate_value(self.policy.normalized_value(seen), rows)

    def differentiate_policy(self, distribution: Tensor, rows: Batch) -> Metrics | None:
        """`policy_gradient`, given the distribution's parameters [M, P] of the rows."""
        head, objective = self.policy.head, self.objective
        log_ratio = head.log_prob(distribution, torch.from_numpy(rows.action)) - torch.from_numpy(rows.logp)
        ratio = log_ratio.detach().exp()
        kl = float(kl_estimate(log_ratio.detach(), ratio))
        if objective.is_exceeded_by(kl):
            return None
        loss = objective.policy_loss.loss(log_ratio, torch.from_numpy(rows.advantage))
        entropy = head.entropy(distribution).mean()
        _forget_gradients(self.policy.actor_parameters())
        _differentiate(loss - objective.entropy_coef * entropy)
        clip_fraction = objective.policy_loss.clip_fraction(ratio.numpy())
        return _policy_metrics(float(loss.detach()), kl, float(entropy.detach()), clip_fraction)

    def differentiate_value(self, value: Tensor, rows: Batch) -> Metrics:
        """`value_gradient`, given the normalised values [M] of the rows."""
        target = torch.from_numpy(rows.target)
        if self.objective.value_clip is None:
            loss = value_loss(value, target)
        else:
            loss = clipped_value_loss(value, torch.from_numpy(rows.old_value), target, self.objective.value_clip)
        _forget_gradients(self.policy.critic_parameters())
        _differentiate(loss)
        return {"value/loss": float(loss.detach())}


class NumpyGradients(Gradients):
    """For MLPs on the CPU: the same derivatives, written out."""

    def __init__(self, policy: ActorCritic, objective: Objective) -> None:
        super().__init__(policy, objective)
        self._numpy, self._forward = DifferentiableActorCritic(policy), NumpyActorCritic(policy)

    def features(self, obs: Any) -> Array:
        return self._forward.features(obs)

    def value(self, seen: Array | SharedRows) -> Array:
        return self._forward.value(seen).copy()

    def log_prob(self, features: Array, mask: Array | None, action: Array) -> Array:
        return self.policy.head.log_prob_numpy(self._forward.distribution(features, mask), action).copy()

    def policy_gradient(self, rows: Batch) -> Metrics | None:
        head, objective = self.policy.head, self.objective
        parameters = self._numpy.distribution(rows.features, rows.mask)
        log_ratio = head.log_prob_numpy(parameters, rows.action) - rows.logp
        ratio = np.exp(log_ratio)
        kl = float((ratio - 1.0 - log_ratio).mean())
        if objective.is_exceeded_by(kl):
            return None
        loss, slope = objective.policy_loss.loss_and_slope(log_ratio, rows.advantage)
        self._numpy.backward_distribution(parameters, rows.action, slope, -objective.entropy_coef / len(rows))
        entropy = float(head.entropy_numpy(parameters).mean())
        return _policy_metrics(loss, kl, entropy, objective.policy_loss.clip_fraction(ratio))

    def value_gradient(self, rows: Batch) -> Metrics:
        value, clip = self._numpy.normalized_value(rows.critic_features), self.objective.value_clip
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


def flat_rows(column: Any) -> Any:
    """`[T, L, …]` as `[M, …]`."""
    if column is None:
        return None
    return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), column)


def all_rows(rollout: Rollout, judged: Judgement, advantage: Array) -> Batch:
    """All rows of a rollout, usable or not."""
    action, mask = flat_rows(rollout.action), flat_rows(rollout.action_mask)
    advantages, targets, values = (flat_rows(column) for column in (advantage, advantage + judged.value, judged.value))
    return Batch(judged.features, action, mask, judged.logp, advantages, targets, values, judged.central)


def _forget_gradients(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


def _differentiate(loss: Tensor) -> None:
    if loss.requires_grad:  # not where every parameter is frozen
        loss.backward()  # type: ignore[no-untyped-call]


def tensor_or_none(array: Array | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


def _policy_metrics(loss: float, kl: float, entropy: float, clip_fraction: float) -> Metrics:
    return {
        "policy/loss": loss,
        "policy/kl": kl,
        "policy/entropy": entropy,
        "policy/clip_fraction": clip_fraction,
    }
