"""What algorithms that learn from replay minimise, and the targets that they learn: pure functions of tensors, on any device.

Rows are `[M, N]`: a transition of each of a group's agents. `share` [M, N] is each row's part of a mean over the rows on which
agents acted, times its importance weight where replay is prioritised. `twins` [Q, M, N] are the values of several critics.
"""

from __future__ import annotations

from torch import Tensor


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """y = R + γⁿ V(s′): `reward` is the discounted sum of n rewards, `discount` is γⁿ, or 0 where the episode terminated."""
    return reward + discount * next_value


def min_q(twins: Tensor) -> Tensor:
    """min_i Q_i (Fujimoto et al., 2018)."""
    return twins.amin(0)


def soft_value(q: Tensor, logp: Tensor, temperature: float | Tensor) -> Tensor:
    """V = Q − α log π(a|s) (Haarnoja et al., 2018)."""
    return q - temperature * logp


def smoothed_action(action: Tensor, noise: Tensor, noise_clip: float) -> Tensor:
    """TD3's target action, clip(a + clip(ε, ±c), ±1), in units of half the action range."""
    return (action + noise.clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def td_loss(values: Tensor, target: Tensor, share: Tensor) -> Tensor:
    """Σ_i ½ E[w (Q_i(s, a) − y)²], of one critic's values or those of twins."""
    return 0.5 * ((values - target).square() * share).sum()


def deterministic_policy_loss(q: Tensor, share: Tensor) -> Tensor:
    """−E[Q(s, π(s))] (Silver et al., 2014)."""
    return -(q * share).sum()


def soft_policy_loss(q: Tensor, logp: Tensor, temperature: float | Tensor, share: Tensor) -> Tensor:
    """E[α log π(a|s) − Q(s, a)] (Haarnoja et al., 2018)."""
    return -(soft_value(q, logp, temperature) * share).sum()


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: Tensor) -> Tensor:
    """L_α = log α (H(π) − target): too much entropy makes it cheaper."""
    return log_temperature * (entropy - target_entropy).detach()
