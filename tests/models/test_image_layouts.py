"""Which axes of an observation are an image, and that the network sees the same picture in every layout."""

import logging

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.algorithms.on_policy_params import PPOParams
from relayrl.algorithms.registry import algorithms
from relayrl.errors import ConfigError
from relayrl.models.network_settings import ImageAxes, NetworkSettings
from relayrl.models.networks.image_layout import image_layout
from relayrl.models.networks.mlp import MLP
from relayrl.models.policy import ActorCritic
from relayrl.training.trainers.construction import GroupPlan, LearnerPlan, build_learner

SMALL = NetworkSettings(hidden_sizes=(8,))


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        ((84, 84), (1, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 84, 84), (3, 84, 84)),
        ((12, 84, 84), (12, 84, 84)),
        ((24, 32, 32), (24, 32, 32)),
        ((32, 32, 24), (24, 32, 32)),
        ((4, 84, 96, 3), (12, 84, 96)),
        ((4, 3, 84, 84), (12, 84, 84)),
        ((84, 84, 3, 4), (12, 84, 84)),
    ],
)
def test_height_and_width_are_the_largest_neighbours(shape, channels_first):
    layout = image_layout(shape)
    assert layout is not None
    assert layout.channels_first == channels_first


@pytest.mark.parametrize("shape", [(128,), (7, 7, 3), (10, 10, 4), (100, 10, 3)])
def test_small_arrays_are_not_convolved(shape):
    assert image_layout(shape) is None


@pytest.mark.parametrize("shape", [(84, 84, 84), (100, 84, 84), (32, 32, 32, 3), (84, 4, 84)])
def test_what_cannot_be_told_is_refused(shape):
    with pytest.raises(ConfigError, match="cannot tell height and width"):
        _policy(spaces.Box(0, 255, shape, np.uint8))


def _policy(space):
    return ActorCritic(space, spaces.Discrete(3), SMALL, torch.Generator().manual_seed(0))


def test_a_picture_means_the_same_in_every_layout():
    picture = np.random.default_rng(0).integers(0, 256, (5, 3, 40, 36), np.uint8)
    first = _policy(spaces.Box(0, 255, (3, 40, 36), np.uint8))
    last = _policy(spaces.Box(0, 255, (40, 36, 3), np.uint8))
    stack = _policy(spaces.Box(0, 255, (3, 40, 36, 1), np.uint8))
    with torch.no_grad():
        expected = first(torch.from_numpy(picture))[1]
        assert torch.allclose(last(torch.from_numpy(picture.transpose(0, 2, 3, 1)))[1], expected, atol=1e-6)
        assert torch.allclose(stack(torch.from_numpy(picture[..., None]))[1], expected, atol=1e-6)


def test_twelve_channels_first_are_convolved_not_flattened():
    policy = _policy(spaces.Box(0, 255, (12, 84, 84), np.uint8))
    assert policy.image_encoder.convolutions["0"][0].in_channels == 12


def test_images_of_real_numbers_are_convolved_and_scaled():
    pixels, bounded = np.full((2, 3, 40, 40), 51.0, np.float32), spaces.Box(0.0, 255.0, (3, 40, 40), np.float32)
    policy, unit = _policy(bounded), _policy(spaces.Box(0.0, 1.0, (3, 40, 40), np.float32))
    assert policy.image_encoder.num_images == 1
    with torch.no_grad():
        assert torch.equal(policy(torch.from_numpy(pixels))[1], unit(torch.from_numpy(pixels / 255.0))[1])


def test_a_matrix_of_real_numbers_is_no_image():
    assert type(_policy(spaces.Box(-1.0, 1.0, (32, 64), np.float32)).critic) is MLP


def _learner(space):
    group = GroupPlan("team", space, spaces.Discrete(2), 1, SMALL, PPOParams())
    return build_learner(LearnerPlan(algorithms()["ppo"], PPOParams(), 0, 1, 100), [group])


def test_the_layout_is_logged(caplog):
    with caplog.at_level(logging.INFO, "relayrl"):
        _learner(spaces.Dict({"eye": spaces.Box(0, 255, (4, 36, 40, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))}))
    assert [line for line in caplog.messages if "eye" in line and "36x40 with 12 channels" in line]


def test_millions_of_weights_of_an_mlp_are_warned_of(caplog):
    _learner(spaces.Box(-1.0, 1.0, (600, 500), np.float32))
    assert [line for line in caplog.messages if "2.4 million weights" in line]


@pytest.mark.parametrize(
    ("axes", "shape"),
    [("channels_last", (3, 84, 84)), ("channels_first", (84, 84, 3)), ("channels_first", (12, 12, 3))],
)
def test_a_layout_that_leaves_too_few_rows_or_columns_is_refused(axes, shape):
    space, network = spaces.Box(0, 255, shape, np.uint8), SMALL.model_copy(update={"image_layout": ImageAxes(axes)})
    with pytest.raises(ConfigError, match=f"network.image_layout={axes} takes .* too few to convolve"):
        ActorCritic(space, spaces.Discrete(2), network, torch.Generator())


def test_a_layout_is_of_images_alone():
    """A board of 3 x 3 cells beside a picture is not convolved in any order."""
    assert image_layout((3, 3), ImageAxes.CHANNELS_LAST) is None
