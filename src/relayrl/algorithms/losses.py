"""Losses as pure functions of tensors with one leading axis: rows of a minibatch."""

from __future__ import annotations

from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    """PPO's policy loss (Schulman et al., 2017, eq. 7): −E[min(r Â, clip(r, 1 ± ε) Â)]."""
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -(ratio * advantage).minimum(clipped * advantage).mean()


def log_likelihood(logp: Tensor, advantage: Tensor) -> Tensor:
    """REINFORCE's policy loss (Williams, 1992): −E[log π(a) Â]."""
    return -(logp * advantage).mean()


def kl_estimate(log_ratio: Tensor, ratio: Tensor) -> Tensor:
    """KL(old ‖ new) from samples of old: E[(r − 1) − log r], unbiased and never negative (Schulman, 2020, "k3")."""
    return (ratio - 1.0 - log_ratio).mean()


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """½ E[(V − target)²]."""
    return 0.5 * (value - target).square().mean()


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """The larger of the plain loss and that of a value moved by at most `clip` from the old one."""
    moved = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * (value - target).square().maximum((moved - target).square()).mean()
