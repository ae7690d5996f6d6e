"""Heads over Dict, Tuple, several axes and integers: their numbers are those of the plain heads that they are made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.data.action_masks import mask_parts
from relayrl.data.trees import leaves, map_tree
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import HeadKind
from relayrl.models.heads.head_registry import head_of_kind, likelihood_head
from relayrl.testing import FollowSignal

HYBRID = FollowSignal().action_space
GRID = spaces.Box(np.array([[-1, 0], [-3, 2]], np.float32), np.array([[1, 2], [5, 4]], np.float32))
SPACES = {
    "hybrid": HYBRID,
    "grid": GRID,
    "number": spaces.Box(-1.0, 3.0, (), np.float64),
    "integers": spaces.Box(-2, 5, (3,), np.int16),
    "bytes": spaces.Box(0, 255, (2, 2), np.uint8),
    "choices": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
    "bits": spaces.MultiBinary((2, 2)),
    "unbounded": spaces.Tuple((spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3))),
}


def outputs_of(head, rows=64):
    return np.random.default_rng(0).standard_normal((rows, head.num_outputs)).astype(np.float32)


@pytest.mark.parametrize("name", SPACES)
def test_numpy_and_torch_agree_on_actions_of_the_space(name):
    head = likelihood_head(SPACES[name])
    parameters = head.parameters_numpy(outputs_of(head), None)
    tensor = head.parameters(torch.from_numpy(outputs_of(head)), None)
    np.testing.assert_allclose(parameters, tensor.numpy(), atol=1e-5)
    action = head.sample(parameters, np.random.default_rng(1))
    logp = head.log_prob(tensor, map_tree(torch.from_numpy, action)).numpy()
    np.testing.assert_allclose(head.log_prob_numpy(parameters, action), logp, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(head.entropy_numpy(parameters), head.entropy(tensor).numpy(), rtol=1e-4, atol=1e-3)
    constants = {k: torch.from_numpy(v) for k, v in {**head.scales, **head.bounds}.items()}
    most_likely = head.mode(parameters)
    for (path, want), (_, have) in zip(leaves(most_likely), leaves(head.mode_torch(tensor, constants)), strict=True):
        np.testing.assert_allclose(want, have.numpy(), atol=1e-4, err_msg=path)
    for row in range(8):
        for tree in (most_likely, head.to_environment(action), head.sample_uniform(8, None, np.random.default_rng(2))):
            assert SPACES[name].contains(map_tree(lambda leaf, i=row: np.asarray(leaf[i]), tree))


def test_log_probabilities_and_entropies_add_up_over_the_leaves():
    head = likelihood_head(HYBRID)
    parameters = head.parameters_numpy(outputs_of(head), None)
    action = head.sample(parameters, np.random.default_rng(1))
    move, tool = likelihood_head(HYBRID["move"]), likelihood_head(HYBRID["tool"])
    dial = likelihood_head(spaces.MultiDiscrete([4, 4]))
    bits = likelihood_head(spaces.MultiBinary(2))
    rest = action["rest"]
    own = [
        (move, action["move"]),
        (dial, rest[0].reshape(64, 2)),
        (bits, rest[1].reshape(64, 2)),
        (tool, action["tool"]),
    ]
    begin, total, entropy = 0, 0.0, 0.0
    for plain, chosen in own:  # a Dict space has its keys in order: move, rest, tool
        part = parameters[:, begin : begin + plain.num_parameters]
        begin += plain.num_parameters
        total = total + plain.log_prob_numpy(part, chosen)
        entropy = entropy + plain.entropy_numpy(part)
    assert begin == head.num_parameters == 4 + 8 + 2 + 3
    np.testing.assert_allclose(head.log_prob_numpy(parameters, action), total, rtol=1e-5)
    np.testing.assert_allclose(head.entropy_numpy(parameters), entropy, rtol=1e-5)


@pytest.mark.parametrize("kind", list(HeadKind))
def test_a_box_of_several_axes_is_its_numbers_side_by_side(kind):
    flat = spaces.Box(GRID.low.reshape(-1), GRID.high.reshape(-1))
    one, other = head_of_kind(GRID, kind, 0.1), head_of_kind(flat, kind, 0.1)
    parameters = other.parameters_numpy(outputs_of(other), None)
    np.testing.assert_array_equal(one.parameters_numpy(outputs_of(one), None), parameters)
    drawn, plain = (head.sample(parameters, np.random.default_rng(1)) for head in (one, other))
    assert drawn.shape == (64, 2, 2)
    np.testing.assert_array_equal(drawn.reshape(64, 4), plain)
    np.testing.assert_array_equal(one.mode(parameters).reshape(64, 4), other.mode(parameters))
    np.testing.assert_array_equal(one.encode_action(drawn), other.encode_action(plain))
    if kind is not HeadKind.STOCHASTIC:
        assert one.critic_width == other.critic_width == 4
        noise = torch.from_numpy(one.draw_noise(64, np.random.default_rng(3)))
        torch.testing.assert_close(
            one.rsample(torch.from_numpy(parameters), noise), other.rsample(torch.from_numpy(parameters), noise)
        )
    one.noise_scale = 0.5
    assert one.noise_scale == 0.5


def test_masks_stand_side_by_side_and_forbidden_options_are_never_drawn():
    space = spaces.Tuple(
        (spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2]), spaces.Box(0, 2, (1,), np.int8))
    )
    assert mask_parts(space) == (3, 2, 2)
    head = likelihood_head(space)
    assert head.mask_width == 7
    mask = np.tile(np.array([True, False, True, False, True, True, False]), (500, 1))
    parameters = head.parameters_numpy(outputs_of(head, 500), mask)
    for choice, _, pair, _ in (head.sample(parameters, np.random.default_rng(1)), head.mode(parameters)):
        assert set(choice.tolist()) == {0, 2}
        assert (pair == [1, 0]).all()


@pytest.mark.parametrize("space", [spaces.Box(0, 5000, (2,), np.int32), spaces.Box(0, 2**62, (1,), np.int64)])
def test_integers_of_too_wide_a_range_are_refused(space):
    with pytest.raises(ConfigError, match="at most 1024 per entry"):
        likelihood_head(space)
