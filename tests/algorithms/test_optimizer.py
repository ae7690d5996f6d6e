"""Our Adam is torch's with clip_grad_norm_, on one vector, and so is its kernel."""

import pytest
import torch
from torch import nn

from relayrl.accelerator.adam_kernel import accelerate_steps
from relayrl.algorithms.optimizer import POLICY_GRADIENT_EPSILON, FlatAdam, require_distinct
from relayrl.errors import ConfigError


def networks() -> tuple[nn.Module, nn.Module]:
    first, second = (nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(2))
    second.load_state_dict(first.state_dict())
    return first, second


def make_adam(network: nn.Module, max_grad_norm: float | None, is_accelerated: bool) -> FlatAdam:
    adam = FlatAdam(list(network.parameters()), 1e-2, max_grad_norm)
    if is_accelerated:
        accelerate_steps([adam])
        assert adam.kernel is not None
    return adam


@pytest.mark.parametrize("is_accelerated", [False, True])
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_it_takes_the_steps_of_torch_adam(max_grad_norm, is_accelerated):
    torch.manual_seed(0)
    ours, theirs = networks()
    flat = make_adam(ours, max_grad_norm, is_accelerated)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=POLICY_GRADIENT_EPSILON)
    for _ in range(50):
        x = torch.randn(16, 3)
        for network in (ours, theirs):
            for parameter in network.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            network(x).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm or float("inf"))
        assert flat.step() == pytest.approx(float(norm), rel=1e-5)
        adam.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_accelerated", [False, True])
def test_state_round_trip_continues_bit_for_bit(is_accelerated):
    torch.manual_seed(0)
    first, second = networks()
    adams = [make_adam(n, None, is_accelerated) for n in (first, second)]
    gradients = torch.randn(10, len(adams[0].gradient))
    for g in gradients[:5]:
        adams[0].gradient.copy_(g)
        adams[0].step()
    adams[1].load_state_dict(adams[0].state_dict())
    second.load_state_dict(first.state_dict())
    for g in gradients[5:]:
        for adam in adams:
            adam.gradient.copy_(g)
            adam.step()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_parameter_that_is_trained_twice_is_refused():
    shared = nn.Parameter(torch.zeros(3))
    with pytest.raises(ConfigError, match="share a parameter"):
        FlatAdam([shared, shared], 1e-2, None)
    with pytest.raises(ConfigError, match="share a parameter"):
        require_distinct([shared], [nn.Parameter(torch.zeros(3)), shared])
