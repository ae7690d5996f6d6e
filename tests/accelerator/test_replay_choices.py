"""The gradients that choices pull back to a network's outputs, against autograd on the same equations."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.replay_choices import chooser_of
from relayrl.models.heads.box_heads import LOG_2PI, DeterministicHead, SquashedGaussianHead
from relayrl.models.heads.head_registry import likelihood_head

ROWS = 64
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def weights(width: int) -> tuple[np.ndarray, np.ndarray]:
    """A loss's gradients by action and by log-probability."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(ROWS, width)).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)


def assert_pulled_back(choice, action: torch.Tensor, logp: torch.Tensor, outputs: torch.Tensor, rows=slice(None)):
    by_action, by_logp = weights(choice.action.shape[1])
    ((action * torch.from_numpy(by_action)).sum() + (logp * torch.from_numpy(by_logp)).sum()).backward()
    gradient = choice.output_gradient(by_action, by_logp)[rows]
    np.testing.assert_allclose(gradient, outputs.grad.numpy()[rows], rtol=1e-3, atol=1e-4)


def raw_outputs(width: int) -> torch.Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_a_deterministic_choice():
    outputs = raw_outputs(2)
    choice = chooser_of(DeterministicHead(BOX)).choose(outputs.detach().numpy(), None, np.random.default_rng(0))
    np.testing.assert_allclose(choice.action, outputs.detach().tanh().numpy(), rtol=1e-5)
    assert_pulled_back(choice, outputs.tanh(), torch.zeros(ROWS), outputs)


@pytest.mark.parametrize("log_std", [-1.0, 5.0, -30.0], ids=["free", "clipped above", "clipped below"])
def test_a_squashed_choice(log_std):
    outputs = raw_outputs(4)
    with torch.no_grad():
        outputs[:, 2:] *= 0.1
        outputs[:, 2:] += log_std
    choice = chooser_of(SquashedGaussianHead(BOX)).choose(outputs.detach().numpy(), None, np.random.default_rng(3))
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal((ROWS, 2), dtype=np.float32))
    mean, spread = outputs.chunk(2, -1)
    spread = spread.clamp(-20.0, 2.0)
    action = (mean + spread.exp() * noise).tanh()
    logp = (-0.5 * noise**2 - spread - 0.5 * LOG_2PI - (1 - action**2).log()).sum(-1)
    np.testing.assert_allclose(choice.action, action.detach().numpy(), rtol=1e-5, atol=1e-6)
    # Where tanh is nearly 1, its slope is what rounding left of it.
    inside = (np.abs(choice.action) < 0.99).all(-1)
    assert inside.sum() > 5
    np.testing.assert_allclose(choice.logp[inside], logp.detach().numpy()[inside], rtol=1e-3, atol=1e-3)
    assert_pulled_back(choice, action, logp, outputs, rows=inside)


def test_a_squashed_choice_is_exact_where_tanh_has_rounded_to_one():
    u = np.concatenate([x := np.array([0.5, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0]), -x])
    outputs = np.stack([u, np.full(len(u), -20.0)], -1).astype(np.float32)
    choice = chooser_of(SquashedGaussianHead(spaces.Box(-1, 1, (1,)))).choose(outputs, None, np.random.default_rng(3))
    noise = np.random.default_rng(3).standard_normal((len(u), 1), dtype=np.float32)[:, 0].astype(np.float64)
    # In float64: log π = log N − log(1 − tanh² u), and 1 − tanh² u = 1 / cosh² u.
    expected = -0.5 * noise**2 + 20.0 - 0.5 * LOG_2PI + 2.0 * np.log(np.cosh(u))
    np.testing.assert_allclose(choice.logp, expected, rtol=1e-6)
    nothing, one = np.zeros((len(u), 1), np.float32), np.ones((len(u), 1), np.float32)
    by_action = choice.output_gradient(one, nothing[:, 0])[:, 0]
    np.testing.assert_allclose(by_action, 1.0 / np.cosh(u) ** 2, rtol=1e-5)
    by_logp = choice.output_gradient(nothing, one[:, 0])[:, 0]
    np.testing.assert_allclose(by_logp, 2.0 * np.tanh(u), rtol=1e-6)


def test_a_squashed_choice_is_finite_wherever_a_network_points():
    outputs = np.array([[1e4, 2.0], [-1e4, 2.0], [88.0, -20.0]], np.float32)
    choice = chooser_of(SquashedGaussianHead(spaces.Box(-1, 1, (1,)))).choose(outputs, None, np.random.default_rng(3))
    assert choice.action[:, 0].tolist() == [1.0, -1.0, 1.0]
    assert np.isfinite(choice.logp).all()
    assert np.isfinite(choice.output_gradient(np.ones((3, 1), np.float32), np.ones(3, np.float32))).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("space", [spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3])], ids=["one", "several"])
def test_a_one_hot_choice(space, masked):
    head = likelihood_head(space)
    outputs = raw_outputs(head.num_outputs)
    mask = np.ones((ROWS, head.num_outputs), bool)
    mask[:, 1] = not masked
    choice = chooser_of(head).choose(outputs.detach().numpy(), mask, np.random.default_rng(5))
    log_probs = head.parameters(outputs, torch.from_numpy(mask))
    uniform = torch.from_numpy(np.random.default_rng(5).random(log_probs.shape, dtype=np.float32))
    noisy = log_probs - (-uniform.log()).log()
    soft = torch.cat([noisy[:, where].softmax(-1) for where in head.slices], -1)
    assert (choice.action.sum(-1) == len(head.slices)).all()
    assert masked == (choice.action[:, 1].sum() == 0)
    assert_pulled_back(choice, soft, -head.entropy(log_probs), outputs)


@pytest.mark.parametrize("space", [spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3])], ids=["one", "several"])
def test_stored_choices_are_one_hot(space):
    head = likelihood_head(space)
    space.seed(0)
    action = np.stack([space.sample() for _ in range(10)]).reshape(10, 1, *space.shape)
    hot = head.encode_action(action)
    starts = np.atleast_1d(space.start)
    for row, encoded in zip(action.reshape(10, -1), hot[:, 0], strict=True):
        for i, where in enumerate(head.slices):
            assert encoded[where].tolist() == [float(k + starts[i] == row[i]) for k in range(where.stop - where.start)]
