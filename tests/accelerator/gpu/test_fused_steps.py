"""Acting, values, advantages and Adam of the GPU's kernels are those of the torch reference."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rows_of_policies import make_policy, make_rows

from relayrl.accelerator.gpu import acting_kernels
from relayrl.accelerator.gpu.clipped_adam import FusedAdam
from relayrl.accelerator.gpu.fused_update import known_update
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.algorithms import returns
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_adam import DeviceAdam
from relayrl.algorithms.updates.device_update import DeviceUpdate

PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)
SPACES = {
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([2, 3, 4], start=[0, 1, 0]),
    "normal": spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([3.0, np.inf], np.float32)),
}


def _updates(parts):
    found = known_update(parts[0], PPO, *parts[1:], Precision.NEAR_FLOAT32)
    assert found is not None
    return found, DeviceUpdate(parts[0], PPO, *parts[1:])


@pytest.fixture(params=["fused", "layered"], autouse=True)
def width_limit(request, monkeypatch):
    """Every network takes the same way, whatever its width."""
    limit = 1 << 20 if request.param == "fused" else 0
    monkeypatch.setattr(acting_kernels, "MAX_FUSED_WIDTH", dict.fromkeys(Precision, limit))


@pytest.mark.parametrize("name", SPACES)
def test_acts_as_the_reference(name):
    parts = make_policy(SPACES[name], hidden=(20, 8), num_features=5)
    own, reference = _updates(parts)
    features = make_rows(parts[0], 70).features
    _, width = parts[0].head.noise
    draw = torch.randn if name == "normal" else torch.rand
    noise = draw(70, width, generator=torch.Generator().manual_seed(5))
    action, logp = own.act(features, noise)
    expected, expected_logp = reference.act(features, noise)
    assert action.dtype == expected.dtype
    torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logp, expected_logp, rtol=1e-4, atol=1e-5)


def test_never_draws_a_masked_action():
    parts = make_policy(SPACES["multi"])
    own, _ = _updates(parts)
    rows = make_rows(parts[0], 64, has_mask=True)
    noise = torch.rand(64, 3, generator=torch.Generator().manual_seed(1))
    noise[:8], noise[8:16] = 0.0, 1.0 - 2.0**-24
    action, logp = own.act(rows.features, noise, rows.mask)
    columns = action - torch.tensor([0, 1, 0]) + torch.tensor([0, 2, 5])
    assert rows.mask.gather(1, columns).all()
    distribution = parts[0].distribution(rows.features, rows.mask)
    torch.testing.assert_close(logp, parts[0].head.log_prob(distribution, action), rtol=1e-4, atol=1e-5)


def test_values_are_in_units_of_reward():
    parts = make_policy(SPACES["discrete"], hidden=(8, 8, 8), activation="relu")
    own, reference = _updates(parts)
    parts[0].return_normalizer.update(torch.linspace(-3.0, 7.0, 50)[:, None])
    features = make_rows(parts[0], 77).features
    torch.testing.assert_close(own.values(features), reference.values(features), rtol=1e-5, atol=1e-5)


def _columns(shape, num_slots):
    """Rewards, values and flags, of which each lane is truncated at most `num_slots` times."""
    g = torch.Generator().manual_seed(2)
    reward, value = torch.randn(2, *shape, generator=g)
    last, final = torch.randn(shape[1], generator=g), torch.randn(num_slots, shape[1], generator=g)
    terminated, truncated = torch.rand(2, *shape, generator=g) < 0.3
    truncated &= truncated.cumsum(0) <= num_slots
    return reward, (value, last, final), (terminated, truncated)


@pytest.mark.parametrize(("shape", "num_slots"), [((1, 3), 1), ((7, 65), 1), ((9, 65), 3)])
def test_advantages_are_those_of_the_reference(shape, num_slots):
    own, reference = _updates(make_policy(SPACES["discrete"]))
    arguments = *_columns(shape, num_slots), 0.97, 0.9
    torch.testing.assert_close(own.advantages(*arguments), reference.advantages(*arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "num_slots"), [((1, 3), 1), ((7, 65), 1), ((9, 65), 3)])
def test_truncated_rows_are_those_of_the_reference(shape, num_slots):
    own, reference = _updates(make_policy(SPACES["discrete"]))
    _, _, (_, truncated) = _columns(shape, num_slots)
    assert truncated.any()
    assert own.truncated_rows(truncated, num_slots).equal(reference.truncated_rows(truncated, num_slots))


@pytest.mark.parametrize("num_rows", [5, 1024, 3001])
def test_normalizes_advantages_far_from_zero_and_adds_up_statistics(num_rows):
    own, reference = _updates(make_policy(SPACES["discrete"]))
    advantage, value = torch.randn(2, num_rows, generator=torch.Generator().manual_seed(0))
    advantage, value = advantage + 1e3, 2 * value - 50
    sums = [torch.tensor([1.0, 2.0, 3.0]) for _ in range(2)]
    out = own.normalized(advantage, value, sums[0])
    reference.normalized(advantage, value, sums[1])
    expected = returns.normalized(advantage.numpy().astype(np.float64))
    torch.testing.assert_close(out, torch.from_numpy(expected), rtol=1e-3, atol=1e-3, check_dtype=False)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-4, atol=1e-4)
    assert sums[0][2] == 4.0


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_adam_steps_as_the_reference_and_stops(max_norm):
    g = torch.Generator().manual_seed(0)
    start = torch.randn(2500, generator=g)
    own, reference = (FlatAdam([torch.nn.Parameter(start.clone())], 3e-3, max_norm) for _ in range(2))
    fused, plain = FusedAdam(own), DeviceAdam(reference)
    for keep in (1.0, 1.0, 0.0, 1.0):
        gradient = torch.randn(2500, generator=g)
        own.gradient.copy_(gradient)
        reference.gradient.copy_(gradient)
        norm, expected = (adam.step(torch.tensor([keep])) for adam in (fused, plain))
        torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(own.vector, reference.vector, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.first_moment, reference.first_moment, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(own.second_moment, reference.second_moment, rtol=1e-5, atol=1e-7)
    assert fused.num_steps.item() == 3.0
