"""Losses and targets of learning from replay, against numbers worked out by hand."""

import math

import pytest
import torch

from relayrl.algorithms.updates.replay_losses import (
    deterministic_policy_loss,
    min_q,
    smoothed_action,
    soft_policy_loss,
    soft_value,
    td_loss,
    td_target,
    temperature_loss,
)

SHARE = torch.tensor([[0.5, 0.0], [0.25, 0.25]])


def test_a_target_bootstraps_where_the_episode_goes_on():
    reward, discount = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.81, 0.0]])
    assert td_target(reward, discount, torch.tensor([[10.0, 10.0]])).tolist() == [[pytest.approx(9.1), 2.0]]


def test_min_q_is_taken_row_by_row():
    assert min_q(torch.tensor([[[1.0, 5.0]], [[2.0, 3.0]]])).tolist() == [[1.0, 3.0]]


def test_a_soft_value_is_less_by_the_weighted_log_probability():
    assert soft_value(torch.tensor([2.0]), torch.tensor([-1.5]), 0.2).tolist() == [pytest.approx(2.3)]


def test_smoothing_clips_the_noise_and_then_the_action():
    action, noise = torch.tensor([0.0, 0.9, -0.9]), torch.tensor([3.0, 0.2, 0.1])
    assert smoothed_action(action, noise, 0.5).tolist() == pytest.approx([0.5, 1.0, -0.8])


def test_the_td_loss_is_half_the_weighted_square_of_each_critic():
    twins = torch.tensor([[[1.0, 9.0], [2.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]]], requires_grad=True)
    loss = td_loss(twins, torch.tensor([[3.0, 0.0], [0.0, 4.0]]), SHARE)
    # ½ (.5·4 + .25·4 + .25·16) + ½ (.5·9 + .25·16)
    assert loss.item() == pytest.approx(3.5 + 4.25)
    loss.backward()
    assert twins.grad[0].tolist() == [[-1.0, 0.0], [0.5, -1.0]]


def test_policies_climb_the_value_and_are_rewarded_for_entropy():
    q, logp = torch.tensor([[4.0, 100.0], [8.0, 0.0]]), torch.tensor([[1.0, 100.0], [-2.0, 3.0]])
    assert float(deterministic_policy_loss(q, SHARE)) == pytest.approx(-4.0)
    # .5 (.1 − 4) + .25 (−.2 − 8) + .25 (.3 − 0)
    assert float(soft_policy_loss(q, logp, 0.1, SHARE)) == pytest.approx(-1.95 - 2.05 + 0.075)


def test_too_much_entropy_lowers_the_temperature():
    log_alpha = torch.tensor(math.log(0.5), requires_grad=True)
    temperature_loss(log_alpha, torch.tensor(1.5), torch.tensor(-1.0)).backward()
    assert float(log_alpha.grad) == 2.5
