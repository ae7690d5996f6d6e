"""Losses against numbers computed by hand."""

import pytest
import torch

from relayrl.algorithms.losses import (
    ClippedSurrogate,
    LogLikelihood,
    clipped_surrogate,
    clipped_value_loss,
    entropy_bonus,
    kl_estimate,
    log_likelihood,
    value_loss,
)


def test_clipped_surrogate_takes_the_pessimistic_side():
    # ratio 1.5, Â 1 → 1.2 (clipped);  ratio .5, Â −1 → −.8 (clipped);  ratio 1.5, Â −1 → −1.5 (not clipped)
    ratio, advantage = torch.tensor([1.5, 0.5, 1.5]), torch.tensor([1.0, -1.0, -1.0])
    assert float(clipped_surrogate(ratio, advantage, 0.2)) == pytest.approx(-(1.2 - 0.8 - 1.5) / 3)


def test_kl_estimate_is_never_negative():
    log_ratio = torch.linspace(-3, 3, 101)
    assert bool(((log_ratio.exp() - 1 - log_ratio) >= 0).all())
    assert float(kl_estimate(torch.zeros(4))) == 0.0


def test_kl_estimate_is_unbiased():
    # KL between N(0,1) and N(.5,1) is .125.
    x = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    log_ratio = -0.5 * (x - 0.5) ** 2 + 0.5 * x**2
    assert float(kl_estimate(log_ratio)) == pytest.approx(0.125, abs=2e-3)


def test_value_loss_is_half_the_mean_square():
    assert float(value_loss(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))) == pytest.approx(2.5)


def test_clipped_value_loss_takes_the_larger():
    # moved = 0 + clip(2, ±.2) = .2; target 3: max((2−3)², (.2−3)²) / 2 = 3.92
    loss = clipped_value_loss(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0]), 0.2)
    assert float(loss) == pytest.approx(3.92)


def test_log_likelihood_is_weighted_by_the_advantage():
    assert float(log_likelihood(torch.tensor([-1.0, -3.0]), torch.tensor([2.0, -1.0]))) == pytest.approx(-0.5)


def test_entropy_lowers_the_loss():
    assert float(entropy_bonus(torch.tensor([1.0, 2.0]), 0.1)) == pytest.approx(-0.15)


def test_rows_outside_the_clip_are_counted():
    ratio = torch.tensor([0.7, 0.9, 1.1, 1.3])
    assert float(ClippedSurrogate(0.2).clip_fraction(ratio)) == 0.5
    assert float(LogLikelihood().clip_fraction(ratio)) == 0.0
