"""Convolutions by kernels: outputs and gradients beside float64, steps beside the reference, and what is left to it."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from relayrl.accelerator.gpu.convolutions.fused_convolutions import Convolution, Convolved
from relayrl.accelerator.gpu.convolutions.fused_images import FusedRecurrentImageUpdate, fused_image_update
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_sequences import reference_device_update
from relayrl.algorithms.updates.device_update import DeviceBatch
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.models.recurrent_policy import RecurrentActorCritic

PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.3, target_kl=0.5)
NATURE, SIMPLE, SMALL = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), ((16, 8, 4), (32, 4, 2)), ((32, 3, 2), (64, 3, 2))
ODD = ((35, 3, 1), (20, 2, 1), (7, 3, 3))


def _rounded(numbers):
    """With the bits that are multiplied, and the gradient as it is."""
    return numbers + (numbers.to(torch.float16).double() - numbers).detach()


def _expected(images, filters, parameters):
    """[M, OY · OX · F] in float64, of what the kernels round."""
    x = images.permute(0, 3, 1, 2).double() / 255
    for i, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        x = nn.functional.conv2d(x, _rounded(weight), bias, filters[i][2]).relu()
        x = x if i == len(filters) - 1 else _rounded(x)
    return x.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize(
    ("filters", "shape", "magnitude"),
    [
        (NATURE, (44, 44, 4), 1e-6),
        (SIMPLE, (36, 40, 3), 1e5),
        (SMALL, (11, 14, 5), 1e-25),
        (SMALL, (15, 11, 1), 0.0),
        (ODD, (13, 12, 1), 1.0),
    ],
)
def test_gradients_are_those_of_float64(filters, shape, magnitude):
    generator = torch.Generator().manual_seed(0)
    (height, width, channels), sizes, exact = shape, [], []
    for number, size, stride in filters:
        sizes.append(Convolution(height, width, channels, number, size, stride))
        spread = (size * size * channels) ** -0.5
        exact += [spread * torch.randn(number, channels, size, size, generator=generator)]
        exact += [0.1 * torch.randn(number, generator=generator)]
        channels, (height, width) = number, sizes[-1].places
    own = [parameter.requires_grad_() for parameter in exact]
    exact = [parameter.detach().double().requires_grad_() for parameter in own]
    images = torch.randint(0, 256, (5, *shape), dtype=torch.uint8, generator=generator)
    expected = _expected(images, filters, exact)
    found = Convolved.apply(images, sizes, 1 / 255, *own)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)
    # Rows of very different sizes, half of whose numbers are zeros.
    weights = magnitude * torch.randn(5, 1, generator=generator).mul(2).exp()
    given = (
        weights * torch.randn(found.shape, generator=generator) * (torch.rand(found.shape, generator=generator) < 0.5)
    )
    own_gradients = torch.autograd.grad(found, own, given)
    for gradient, want in zip(own_gradients, torch.autograd.grad(expected, exact, given.double()), strict=True):
        assert float((gradient.double() - want).norm()) <= 2e-3 * float(want.norm())


def _parts(shape, network, *, has_memory=False, dtype=np.uint8):
    make = RecurrentActorCritic if has_memory else ActorCritic
    box = spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)
    policy = make(box, spaces.Discrete(4), network, torch.Generator().manual_seed(0))
    return _with_optimizers(policy)


def _with_optimizers(policy):
    return policy, *(FlatAdam(own, 1e-4, 0.5) for own in (policy.actor_parameters(), policy.critic_parameters()))


def _settings(**given):
    return NetworkSettings(**{"hidden_sizes": (16,), "encoder": "nature_cnn", "encoder_size": 24} | given)


@pytest.mark.parametrize("shape", [(36, 36, 3), (3, 36, 40), (2, 36, 36, 3)])
def test_takes_the_steps_of_the_reference(shape):
    parts = _parts(shape, _settings())
    twins = _with_optimizers(copy.deepcopy(parts[0]))
    g = torch.Generator().manual_seed(1)
    obs = torch.randint(0, 256, (12, *shape), dtype=torch.uint8, generator=g)
    action, logp = torch.randint(0, 4, (12,), generator=g), torch.full((12,), -1.4)
    batch = DeviceBatch(obs, obs.clone(), action, None, logp, *torch.randn(3, 12, generator=g))
    noise = torch.rand(12, parts[0].head.noise[1], generator=g)
    found = []
    for update in (fused_image_update(parts[0], PPO, *parts[1:]), reference_device_update(twins[0], PPO, *twins[1:])):
        keep, sums = torch.ones(1), (torch.zeros(6), torch.zeros(3))
        acted = update.values(obs), update.act(obs, noise)[1]
        for where in (torch.tensor([3, 1, 7, 9, 2]), None):
            update.take_step(batch, where, keep, sums)
        gradients = update.pi_adam.flat.gradient, update.vf_adam.flat.gradient
        found.append(((*acted, *sums), gradients))
    (numbers, gradients), (wanted, theirs) = found
    assert float(numbers[2][-1]) == 2
    for number, want in zip(numbers, wanted, strict=True):
        torch.testing.assert_close(number, want, rtol=5e-3, atol=2e-3)
    for gradient, want in zip(gradients, theirs, strict=True):
        # The reference clipped its own in place. Of few rows, every number that rounding brings across 0 counts.
        assert float((gradient / gradient.norm() - want / want.norm()).norm()) <= 5e-2


def test_a_policy_with_a_memory_sees_by_the_same_kernels():
    network = _settings(memory=MemorySettings(kind="gru", size=7, sequence_length=3))
    parts = _parts((36, 36, 3), network, has_memory=True)
    update = fused_image_update(parts[0], PPO, *parts[1:])
    assert type(update) is FusedRecurrentImageUpdate
    reference = reference_device_update(copy.deepcopy(parts[0]), PPO, *parts[1:])
    obs = torch.randint(0, 256, (5, 36, 36, 3), dtype=torch.uint8)
    torch.testing.assert_close(update.encoded(obs), reference.encoded(obs), rtol=1e-3, atol=1e-3)


def _patched(policy):
    policy.image_encoder.of_leaf = policy.image_encoder.of_leaf


def _hooked(policy):
    policy.image_encoder.convolutions["0"][0].register_forward_hook(lambda *_: None)


def _frozen(policy):
    policy.image_encoder.convolutions["0"][2].weight.requires_grad_(False)


def _replaced(policy):
    policy.image_encoder.convolutions["0"][1] = nn.Tanh()


@pytest.mark.parametrize("change", [_patched, _hooked, _frozen, _replaced])
def test_what_a_user_changed_is_left_to_the_reference(change):
    parts = _parts((36, 36, 3), _settings())
    assert fused_image_update(parts[0], PPO, *parts[1:]) is not None
    change(parts[0])
    assert fused_image_update(parts[0], PPO, *parts[1:]) is None


@pytest.mark.parametrize(
    ("network", "dtype"),
    [
        (_settings(encoder="resnet"), np.uint8),
        (_settings(encoder="match3"), np.uint8),  # more filters than a block holds
        (_settings(), np.float32),
        (_settings(normalize_observations=True), np.uint8),
    ],
)
def test_other_encoders_are_left_to_the_reference(network, dtype):
    parts = _parts((36, 36, 3), network, dtype=dtype)
    assert fused_image_update(parts[0], PPO, *parts[1:]) is None


def test_convolutions_of_float32_are_left_to_torch(monkeypatch):
    parts = _parts((36, 36, 3), _settings())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert fused_image_update(parts[0], PPO, *parts[1:]) is None
