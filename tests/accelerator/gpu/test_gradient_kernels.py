"""Gradients of the GPU's kernels are those of autograd over the reference losses: heads, depths, activations, masks."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rows_of_policies import make_policy, make_rows, reference_policy_gradient, reference_value_gradient

from relayrl.accelerator.gpu import gradient_plans
from relayrl.accelerator.gpu.fused_update import fused_update, known_update
from relayrl.accelerator.gpu.gradient_plans import LayeredPlan, PersistentPlan
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.wide import layered_plan
from relayrl.algorithms.losses import ClippedSurrogate, LogLikelihood, Objective
from relayrl.algorithms.updates.device_update import DeviceUpdate

DISCRETE, MULTI = spaces.Discrete(5, start=1), spaces.MultiDiscrete([2, 3, 4], start=[0, 1, 0])
NORMAL = spaces.Box(np.array([-1.0, -2.0, -np.inf], np.float32), np.array([3.0, 2.0, np.inf], np.float32))
PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.2)
PLAIN = Objective(LogLikelihood(), entropy_coef=0.02)
PLANS = {"persistent": PersistentPlan, "layered": LayeredPlan, "by_library": LayeredPlan}


@pytest.fixture(params=PLANS)
def plan(request, monkeypatch):
    """Every network takes the same way, whatever its size."""
    limit = 1 << 30 if request.param == "persistent" else 0
    monkeypatch.setattr(gradient_plans, "SMALL_WEIGHTS", limit)
    if request.param == "layered":
        monkeypatch.setattr(layered_plan, "BY_LIBRARY", frozenset())
    return PLANS[request.param]


def _update(parts, objective):
    found = known_update(parts[0], objective, *parts[1:], Precision.NEAR_FLOAT32)
    assert found is not None
    return found


def _assert_close(own, reference):
    assert (own - reference).norm() <= 2e-5 * reference.norm() + 1e-7


@pytest.mark.parametrize(
    ("space", "has_mask", "hidden", "activation", "num_features", "num_rows"),
    [
        (DISCRETE, False, (8,), "tanh", 3, 5),
        (DISCRETE, True, (20, 8), "relu", 16, 70),
        (MULTI, True, (8, 24, 8), "tanh", 1, 67),
        (NORMAL, False, (8, 8, 8, 8), "relu", 4, 33),
        (NORMAL, False, (17, 9), "tanh", 40, 100),
    ],
)
def test_gradients_are_those_of_autograd(plan, space, has_mask, hidden, activation, num_features, num_rows):
    parts = make_policy(space, hidden, activation, num_features)
    rows = make_rows(parts[0], 2 * num_rows, has_mask)
    which = torch.randperm(2 * num_rows, generator=torch.Generator().manual_seed(3))[:num_rows]
    for objective in (PPO, PLAIN) if space is NORMAL else (PPO,):
        update = _update(parts, objective)
        expected, metrics = reference_policy_gradient(parts[0], objective, rows, which)
        found, loss_found = update.gradients(rows, which, trains_pi=True, trains_vf=True)
        _assert_close(parts[1].gradient, expected)
        torch.testing.assert_close(found, metrics, rtol=1e-4, atol=1e-5)
        expected, loss = reference_value_gradient(parts[0], objective, rows, which)
        _assert_close(parts[2].gradient, expected)
        torch.testing.assert_close(loss_found[0], loss, rtol=1e-4, atol=1e-5)
        assert isinstance(update._plan(which), plan)


def test_all_options_masked_has_no_gradient(plan):
    parts = make_policy(DISCRETE)
    rows = make_rows(parts[0], 4, has_mask=True)
    rows.mask[:] = False
    update = _update(parts, PPO)
    update.gradients(rows, None, trains_pi=True, trains_vf=False)
    assert torch.all(parts[1].gradient == 0.0)


@pytest.mark.parametrize("target_kl", [None, 1e-6])
def test_a_step_of_both_is_that_of_the_reference(plan, target_kl):
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.2, target_kl=target_kl)
    parts, twins = make_policy(NORMAL, (8, 8)), make_policy(NORMAL, (8, 8))
    rows, keep = make_rows(parts[0], 70), torch.ones(1)
    own, reference = _update(parts, objective), DeviceUpdate(twins[0], objective, *twins[1:])
    sums, expected = (torch.zeros(6), torch.zeros(3)), (torch.zeros(6), torch.zeros(3))
    kept, always = torch.ones(1), torch.ones(1)
    for where in (torch.arange(0, 70, 2), None):
        own.take_step(rows, where, keep, sums)
        policy, value = reference.gradients(rows, where, trains_pi=True, trains_vf=True)
        kept = kept * (policy[1:2] <= objective.kl_limit)
        expected[0].add_(torch.cat([policy, reference.step_policy(kept), kept]) * kept)
        expected[1].add_(torch.cat([value, reference.step_value(always), always]))
    assert keep.item() == kept.item() == float(target_kl is None)
    for ours, theirs in zip(
        (*sums, parts[1].vector, parts[2].vector), (*expected, twins[1].vector, twins[2].vector), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert own.pi_adam.num_steps.item() == 2.0 * keep.item()


def test_what_is_not_known_exactly_is_left_to_the_reference():
    class Own(ClippedSurrogate):
        pass

    parts = make_policy(DISCRETE)
    assert fused_update(parts[0], PPO, *parts[1:]) is None  # not on a CUDA device
    assert known_update(parts[0], Objective(Own(0.2), 0.0), *parts[1:], Precision.TF32) is None
    parts[0].actor[0].weight.requires_grad_(False)
    assert known_update(parts[0], PPO, *parts[1:], Precision.TF32) is None
    parts = make_policy(DISCRETE)
    parts[0].critic[0].register_forward_hook(lambda *_: None)
    assert known_update(parts[0], PPO, *parts[1:], Precision.TF32) is None
    parts = make_policy(DISCRETE, hidden=(8, 8, 8, 8, 8))
    assert known_update(parts[0], PPO, *parts[1:], Precision.TF32) is None
