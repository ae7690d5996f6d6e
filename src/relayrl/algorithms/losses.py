"""Losses of on-policy algorithms as torch functions, on any device, of tensors with one leading axis: rows of a minibatch.

The functions are the equations. A `PolicyLoss` is one of them with its settings, an `Objective` everything that an update
minimises: this is what runs, what a subclass changes, and what the accelerator's kernels are held to. A loss that is not finite
stops the run before it reaches the parameters (`require_finite`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from relayrl.errors import TrainingDivergedError

NOT_FINITE_IS_RAISED = np.errstate(invalid="ignore", over="ignore")
"""Losses that are not finite stop the run by `require_finite`; NumPy need not warn before that."""


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    """PPO's policy loss (Schulman et al., 2017, eq. 7): −E[min(r Â, clip(r, 1 ± ε) Â)]."""
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -(ratio * advantage).minimum(clipped * advantage).mean()


def log_likelihood(logp: Tensor, advantage: Tensor) -> Tensor:
    """REINFORCE's policy loss (Williams, 1992): −E[log π(a) Â]."""
    return -(logp * advantage).mean()


def entropy_bonus(entropy: Tensor, entropy_coef: float) -> Tensor:
    """What is added to a policy loss so that the policy stays random: −c E[H]."""
    return -entropy_coef * entropy.mean()


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """KL(old ‖ new) from samples of old: E[(r − 1) − log r], unbiased and never negative (Schulman, 2020, "k3")."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """½ E[(V − target)²]."""
    return 0.5 * (value - target).square().mean()


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """The larger of the plain loss and that of a value moved by at most `clip` from the old one."""
    moved = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * (value - target).square().maximum((moved - target).square()).mean()


def require_finite(loss: float, network: str, rate: str) -> None:
    """Raise where a loss is not a number that can be learned from."""
    if not math.isfinite(loss):
        raise TrainingDivergedError(f"the {network} loss became {loss}; lower {rate}, or check the rewards")


class PolicyLoss(ABC):
    """A loss of log-probabilities, given as `log_ratio = log π(a) − log π_old(a)`."""

    @abstractmethod
    def loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """The loss, for autograd."""

    def offset(self, old_logp: Tensor, advantage: Tensor) -> Tensor:
        """What the loss in log π(a) has besides, which no gradient sees: it is added to what is reported."""
        del advantage
        return old_logp.new_zeros(())

    def clip_fraction(self, ratio: Tensor) -> Tensor:
        """Share of rows that the loss clips."""
        return ratio.new_zeros(())


@dataclass(frozen=True, slots=True)
class ClippedSurrogate(PolicyLoss):
    """PPO's: `clipped_surrogate`."""

    clip_ratio: float

    def loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return clipped_surrogate(log_ratio.exp(), advantage, self.clip_ratio)

    def clip_fraction(self, ratio: Tensor) -> Tensor:
        return ((ratio - 1.0).abs() > self.clip_ratio).to(ratio.dtype).mean()


@dataclass(frozen=True, slots=True)
class LogLikelihood(PolicyLoss):
    """REINFORCE's: `log_likelihood`."""

    def loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return log_likelihood(log_ratio, advantage)

    def offset(self, old_logp: Tensor, advantage: Tensor) -> Tensor:
        return log_likelihood(old_logp, advantage)


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: a policy loss with an entropy bonus, a value loss, and how far the policy may move."""

    policy_loss: PolicyLoss
    entropy_coef: float
    value_clip: float | None = None
    target_kl: float | None = None
    value_coef: float = 1.0  # of the value's gradient in an encoder that actor and critic share

    def value_loss(self, value: Tensor, old_value: Tensor, target: Tensor) -> Tensor:
        """The critic's loss, clipped where `value_clip` is given."""
        if self.value_clip is None:
            return value_loss(value, target)
        return clipped_value_loss(value, old_value, target, self.value_clip)

    @property
    def kl_limit(self) -> float:
        """How far the policy may move from the one that acted."""
        return math.inf if self.target_kl is None else 1.5 * self.target_kl

    def is_exceeded_by(self, kl: float) -> bool:
        """Whether the policy has moved too far from the one that acted."""
        return kl > self.kl_limit
