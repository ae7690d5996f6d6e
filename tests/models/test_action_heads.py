"""Heads: torch and NumPy agree, samples follow the distribution, masked actions never happen."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.errors import ConfigError
from relayrl.models.heads.head_registry import likelihood_head as action_head

SPACES = {
    "discrete": spaces.Discrete(4, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
}


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


def random_parameters(head, rows: int, seed: int = 0) -> torch.Tensor:
    outputs = torch.randn(rows, head.num_outputs, generator=torch.Generator().manual_seed(seed))
    return head.parameters(outputs, None)


def test_numpy_and_torch_parameters_agree(space):
    head = action_head(space)
    outputs = torch.randn(50, head.num_outputs, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(
        head.parameters(outputs, None).numpy(), head.parameters_numpy(outputs.numpy(), None), rtol=1e-5, atol=1e-6
    )


def test_numpy_and_torch_log_probabilities_agree(space):
    head = action_head(space)
    parameters = random_parameters(head, 50)
    action = head.sample(parameters.numpy(), np.random.default_rng(0))
    in_torch = head.log_prob(parameters, torch.from_numpy(action)).numpy()
    np.testing.assert_allclose(in_torch, head.log_prob_numpy(parameters.numpy(), action), rtol=1e-4, atol=1e-5)


def test_samples_and_modes_lie_in_the_space(space):
    head = action_head(space)
    parameters = random_parameters(head, 200).numpy()
    drawn = head.to_environment(head.sample(parameters, np.random.default_rng(0)))
    for action in [*drawn, *head.mode(parameters)]:
        assert space.contains(action.astype(space.dtype)), action


def test_entropy_is_the_mean_negative_log_probability(space):
    head = action_head(space)
    parameters = random_parameters(head, 1).expand(200_000, -1)
    action = head.sample(parameters.numpy(), np.random.default_rng(0))
    estimate = -head.log_prob(parameters, torch.from_numpy(action)).mean()
    assert float(estimate) == pytest.approx(float(head.entropy(parameters[:1])[0]), abs=0.01)


def test_categorical_samples_follow_the_probabilities():
    head = action_head(spaces.Discrete(3))
    parameters = np.log(np.tile(np.array([0.2, 0.5, 0.3], np.float32), (100_000, 1)))
    counts = np.bincount(head.sample(parameters, np.random.default_rng(0)), minlength=3) / 100_000
    np.testing.assert_allclose(counts, [0.2, 0.5, 0.3], atol=0.01)


class _Extremes:
    """A generator that draws the two ends of [0, 1) in turn."""

    def random(self, shape, dtype):
        ends = np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], dtype)
        return np.resize(ends, shape)


@pytest.mark.parametrize("allowed", [[False, True, False], [True, False, False], [False, False, True]])
def test_a_masked_action_is_never_drawn_even_at_the_ends_of_the_unit_interval(allowed):
    head = action_head(spaces.Discrete(3))
    mask = np.tile(np.array(allowed), (10, 1))
    logits = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    parameters = head.parameters_numpy(logits, mask)
    assert (head.sample(parameters, _Extremes()) == allowed.index(True)).all()
    assert (head.mode(parameters) == allowed.index(True)).all()


def test_masked_actions_give_finite_gradients_and_no_entropy():
    head = action_head(spaces.Discrete(3))
    logits = torch.zeros(1, 3, requires_grad=True)
    parameters = head.parameters(logits, torch.tensor([[True, True, False]]))
    entropy = head.entropy(parameters)
    assert float(entropy.detach()) == pytest.approx(np.log(2), abs=1e-6)
    (entropy + head.log_prob(parameters, torch.tensor([0]))).sum().backward()
    assert bool(torch.isfinite(logits.grad).all())
    assert float(logits.grad[0, 2]) == 0.0


def test_gaussian_log_probability_by_hand():
    head = action_head(spaces.Box(-1, 1, (1,)))
    parameters = torch.tensor([[0.5, np.log(2.0)]])
    # log N(1.5; .5, 2) = −½·¼ − log 2 − ½ log 2π
    expected = -0.125 - np.log(2.0) - 0.5 * np.log(2 * np.pi)
    assert float(head.log_prob(parameters, torch.tensor([[1.5]]))[0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Dict({"a": spaces.Text(5)}), spaces.Graph(spaces.Discrete(2), None)]
)
def test_unsupported_spaces_are_refused_with_the_alternatives(space):
    with pytest.raises(ConfigError, match="support"):
        action_head(space)
