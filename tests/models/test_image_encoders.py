"""Encoders of images against the definitions they are named after, and what shares one."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from relayrl.accelerator.live_actor import live_actor
from relayrl.errors import ConfigError
from relayrl.models.exports.export import export_policy, metadata_of
from relayrl.models.exports.exported import ExportedActor, ExportFormat
from relayrl.models.heads.box_heads import SquashedGaussianHead
from relayrl.models.network_settings import EncoderKind, ImageAxes, MemorySettings, NetworkSettings
from relayrl.models.networks.image_encoder import ImageEncoder
from relayrl.models.networks.image_layout import image_layout
from relayrl.models.networks.network_factory import ImageNetwork
from relayrl.models.networks.observation_encoder import LeafEncoding, ObservationEncoder
from relayrl.models.policy import ActorCritic, Policy
from relayrl.models.recurrent_policy import actor_critic

ATARI = spaces.Box(0, 255, (84, 84, 4), np.uint8)


def encoder_of(space, **network):
    return ImageEncoder([LeafEncoding(space)], NetworkSettings(**network), torch.Generator().manual_seed(0))


def pictures(space, num_rows=3):
    return np.random.default_rng(0).integers(0, 256, (num_rows, *space.shape), np.uint8)


def test_nature_cnn_is_stable_baselines3s():
    from stable_baselines3.common import torch_layers

    theirs = torch_layers.NatureCNN(spaces.Box(0, 255, (4, 84, 84), np.uint8), features_dim=512)
    ours = encoder_of(ATARI)
    own = [m for m in ours.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    other = [m for m in theirs.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [layer.weight.shape for layer in own] == [layer.weight.shape for layer in other]
    for mine, their in zip(own, other, strict=True):
        their.load_state_dict(mine.state_dict())
    seen = pictures(ATARI)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(seen.transpose(0, 3, 1, 2)).float() / 255.0)
        torch.testing.assert_close(ours.of_leaves([torch.from_numpy(seen)]), expected, rtol=1e-4, atol=1e-5)


def test_resnet_is_impalas():
    """Espeholt et al., 2018, figure 3, written out."""
    ours = encoder_of(spaces.Box(0, 255, (3, 72, 96), np.uint8), encoder="resnet", encoder_size=256)
    stacks = list(ours.convolutions["0"].children())
    seen = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 72, 96), np.uint8))
    x = seen.float() / 255.0
    with torch.no_grad():
        for i, filters in enumerate((16, 32, 32)):
            convolution, _, *units = stacks[4 * i : 4 * i + 4]
            assert convolution.weight.shape[0] == filters
            x = nn.functional.conv2d(x, convolution.weight, convolution.bias, padding=1)
            x = nn.functional.max_pool2d(x, 3, stride=2, padding=1)
            for unit in units:
                y = nn.functional.conv2d(torch.relu(x), unit.first.weight, unit.first.bias, padding=1)
                x = x + nn.functional.conv2d(torch.relu(y), unit.second.weight, unit.second.bias, padding=1)
        assert x.shape == (2, 32, 9, 12)
        linear = next(layer for layer in stacks if isinstance(layer, nn.Linear))
        expected = torch.relu(linear(torch.relu(x).flatten(1)))
        torch.testing.assert_close(ours.of_leaves([seen]), expected, rtol=1e-4, atol=1e-5)


def test_simple_is_mlagents():
    ours = encoder_of(ATARI, encoder="simple", encoder_size=128)
    layers = [m for m in ours.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.kernel_size[0], m.stride[0]) for m in layers] == [(16, 8, 4), (32, 4, 2)]
    assert ours.of_leaves([torch.from_numpy(pictures(ATARI))]).shape == (3, 128)


@pytest.mark.parametrize("kind", EncoderKind)
@pytest.mark.parametrize("shape", [(16, 16, 1), (20, 24, 3), (36, 36, 4), (3, 64, 64), (210, 160, 3)])
def test_every_encoder_takes_images_of_every_size(kind, shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    ours = encoder_of(space, encoder=kind.value, encoder_size=24)
    with torch.no_grad():
        features = ours.of_leaves([torch.from_numpy(pictures(space))])
        flat = ours(ObservationEncoder(space)(torch.from_numpy(pictures(space))))
    assert features.shape == (3, 24)
    assert np.ptp(features.numpy(), axis=0).max() > 0
    torch.testing.assert_close(features, flat, rtol=1e-4, atol=1e-5)


def test_a_set_layout_is_obeyed():
    assert image_layout((84, 84, 84), ImageAxes.CHANNELS_FIRST).channels_first == (84, 84, 84)
    assert image_layout((32, 48, 64), ImageAxes.CHANNELS_LAST).channels_first == (64, 32, 48)
    assert image_layout((4, 40, 30, 64), ImageAxes.CHANNELS_LAST).channels_first == (256, 40, 30)
    assert image_layout((7, 7, 3), ImageAxes.CHANNELS_LAST).channels_first == (3, 7, 7)
    assert image_layout((84, 84, 3), ImageAxes.FLAT) is None
    small = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    policy = ActorCritic(
        small, spaces.Discrete(2), NetworkSettings(image_layout="channels_last"), torch.Generator().manual_seed(0)
    )
    assert policy.image_encoder.num_images == 1
    flat = NetworkSettings(image_layout="flat", hidden_sizes=(4,))
    assert ActorCritic(ATARI, spaces.Discrete(2), flat, torch.Generator().manual_seed(0)).image_encoder is None


@pytest.mark.parametrize("kind", ["nature_cnn", "simple", "match3"])
def test_a_board_with_a_side_below_seven_goes_through_the_convolutions_of_match3(kind):
    board = spaces.Box(0, 1, (6, 7, 2), np.int8)
    network = NetworkSettings(image_layout="channels_last", encoder=kind, encoder_size=8)
    encoder = ActorCritic(board, spaces.Discrete(7), network, torch.Generator().manual_seed(0)).image_encoder
    filters = [(layer.out_channels, *layer.kernel_size) for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]
    assert filters == [(35, 3, 3), (144, 3, 3)]
    assert image_layout((4, 7, 2), ImageAxes.CHANNELS_LAST) is None


def test_an_ambiguous_image_names_the_setting():
    with pytest.raises(ConfigError, match=r"network\.image_layout"):
        image_layout((84, 84, 84))


def test_the_encoder_is_shared_by_default_and_one_each_where_asked():
    network = {"hidden_sizes": (8,), "encoder_size": 16}
    generator = torch.Generator().manual_seed(0)
    shared = ActorCritic(ATARI, spaces.Discrete(3), NetworkSettings(**network), generator)
    apart = ActorCritic(ATARI, spaces.Discrete(3), NetworkSettings(**network, shared_encoder=False), generator)
    encoders = [sum(isinstance(m, nn.Conv2d) for m in policy.modules()) for policy in (shared, apart)]
    assert encoders == [3, 6]
    assert isinstance(apart.actor, ImageNetwork)
    ids = [{id(p) for p in own} for own in (shared.actor_parameters(), shared.critic_parameters())]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == {id(p) for p in shared.parameters()}


@pytest.mark.parametrize("file_format", ExportFormat)
@pytest.mark.parametrize("kind", EncoderKind)
@pytest.mark.parametrize("shape", [(40, 40, 2), (2, 40, 40)])
def test_a_file_acts_as_the_policy_does(tmp_path, kind, file_format, shape):
    space = spaces.Dict({"eye": spaces.Box(0, 255, shape, np.uint8), "speed": spaces.Box(-1, 1, (2,))})
    network = NetworkSettings(hidden_sizes=(8,), encoder=kind.value, encoder_size=16)
    policy = ActorCritic(space, spaces.Discrete(3), network, torch.Generator().manual_seed(0))
    metadata = metadata_of(policy, env="e", algo="ppo", group="g", version=1, masked=False)
    path = export_policy(policy, metadata, tmp_path / f"p{file_format.suffix}", file_format)
    if file_format is ExportFormat.ONNX:
        actor = ExportedActor(path, with_value=True)
    else:
        from relayrl.models.acting.torch_actor import ScriptActor

        actor = ScriptActor(path)
    obs = {"eye": pictures(space["eye"], 5), "speed": np.zeros((5, 2), np.float32)}
    live = live_actor(policy).decide(obs, None, None, np.random.default_rng(0))
    ours = actor.decide(obs, None, None, np.random.default_rng(0))
    assert np.array_equal(live.action, ours.action)
    np.testing.assert_allclose(live.logp, ours.logp, atol=1e-4)
    np.testing.assert_allclose(live.value, ours.value, atol=1e-4)


def test_a_policy_that_learns_from_replay_is_exported_with_its_encoder(tmp_path):
    head = SquashedGaussianHead(spaces.Box(-1, 1, (2,)))
    network = NetworkSettings(hidden_sizes=(8,), encoder_size=16)
    policy = Policy(ATARI, head, network, torch.Generator().manual_seed(0), shares_encoder=True)
    metadata = metadata_of(policy, env="e", algo="sac", group="g", version=1, masked=False)
    path = export_policy(policy, metadata, tmp_path / "p.onnx", ExportFormat.ONNX)
    seen = pictures(ATARI)
    np.testing.assert_allclose(ExportedActor(path).distribution(seen), live_actor(policy).distribution(seen), atol=1e-4)


def test_a_memory_lies_behind_the_shared_encoder(tmp_path):
    network = NetworkSettings(hidden_sizes=(8,), encoder_size=16, memory=MemorySettings(size=6))
    policy = actor_critic(ATARI, spaces.Discrete(3), network, torch.Generator().manual_seed(0))
    assert sum(isinstance(m, nn.Conv2d) for m in policy.modules()) == 3
    metadata = metadata_of(policy, env="e", algo="ppo", group="g", version=1, masked=False)
    path = export_policy(policy, metadata, tmp_path / "p.onnx", ExportFormat.ONNX)
    memory = np.random.default_rng(1).random((3, policy.memory_width), np.float32)
    seen = pictures(ATARI)
    ours = ExportedActor(path).decide(seen, None, memory, np.random.default_rng(0))
    live = live_actor(policy).decide(seen, None, memory, np.random.default_rng(0))
    assert np.array_equal(ours.action, live.action)
    np.testing.assert_allclose(ours.memory, live.memory, atol=1e-4)
