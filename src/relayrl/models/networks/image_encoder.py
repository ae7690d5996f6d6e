"""What makes features of images: convolutions over every image of an observation, and a layer of `encoder_size` units each.

    nature_cnn    8×8/4, 4×4/2 and 3×3/1 convolutions of 32, 64 and 64 filters (Mnih et al., 2015)
    simple        8×8/4 and 4×4/2 of 16 and 32, as ML-Agents has it
    match3        two 3×3/1 of 35 and 144, for boards of a few cells (Gudmundsson et al., 2018)
    resnet        three blocks of 16, 32 and 32 filters with two residual units each (Espeholt et al., 2018)

Images too small for the first two go through 3×3/2 convolutions instead, those with a side below 7 through match3's. Numbers
beside the images pass as they are. What is convolved lies in memory with its channels last, which the CPU's convolutions are
fastest with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from relayrl.models.network_settings import EncoderKind, NetworkSettings
from relayrl.models.networks.image_layout import ImageLayout
from relayrl.models.networks.mlp import initialize
from relayrl.models.networks.observation_encoder import LeafEncoding, ObservationEncoder

Filters = tuple[tuple[int, int, int], ...]
"""(filters, size, stride) of each layer."""
_CONVOLUTIONS: dict[EncoderKind, Filters] = {
    EncoderKind.NATURE_CNN: ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    EncoderKind.SIMPLE: ((16, 8, 4), (32, 4, 2)),
    EncoderKind.MATCH3: ((35, 3, 1), (144, 3, 1)),
}
_OF_SMALL_IMAGES: Filters = ((32, 3, 2), (64, 3, 2))
_RESNET_FILTERS = (16, 32, 32)
GAIN = math.sqrt(2.0)


class ImageEncoder(nn.Module):
    """The features of an observation that has images, of which `num_images` are convolved."""

    def __init__(self, encodings: Sequence[LeafEncoding], network: NetworkSettings, generator: torch.Generator) -> None:
        """One for observations whose leaves are read as `encodings` say."""
        super().__init__()
        self.encodings = list(encodings)
        self.layouts = [encoding.image_layout(network.image_layout) for encoding in encodings]
        self.convolutions = nn.ModuleDict()
        self.num_outputs = 0
        for i, (layout, encoding) in enumerate(zip(self.layouts, encodings, strict=True)):
            if layout is not None:
                self.convolutions[str(i)] = _convolutions(layout, network, generator)
            self.num_outputs += encoding.width if layout is None else network.encoder_size

    @property
    def num_images(self) -> int:
        """Leaves that are convolved."""
        return len(self.convolutions)

    def forward(self, features: Tensor) -> Tensor:
        """[..., E] of features [..., F] that an `ObservationEncoder` made."""
        parts = features.split([encoding.width for encoding in self.encodings], -1)  # type: ignore[no-untyped-call]
        return self.joined(
            part if layout is None else self._convolved(i, part.unflatten(-1, layout.shape), is_scaled=True)
            for i, (part, layout) in enumerate(zip(parts, self.layouts, strict=True))
        )

    def of_leaves(self, leaves: Sequence[Tensor]) -> Tensor:
        """[..., E] of an observation's leaves: images become real numbers here, and nowhere before."""
        return self.joined(self.of_leaf(i, leaf) for i, leaf in enumerate(leaves))

    def of_leaf(self, i: int, leaf: Tensor) -> Tensor:
        """[..., E] of the observation's leaf `i`."""
        if self.layouts[i] is None:
            return ObservationEncoder.encode_leaf(leaf, self.encodings[i])
        return self._convolved(i, leaf, is_scaled=False)

    def _convolved(self, i: int, leaf: Tensor, *, is_scaled: bool) -> Tensor:
        """[..., E] of one image [..., *shape]."""
        layout, encoding = self.layouts[i], self.encodings[i]
        assert layout is not None
        leading = leaf.shape[: leaf.ndim - len(layout.shape)]
        images = channels_last(leaf.reshape(-1, *layout.shape), layout).permute(0, 3, 1, 2)
        features: Tensor = self.convolutions[str(i)](images if is_scaled else encoding.scaled(images))
        # Exporters would write the number of rows into a file where there is nothing to be reshaped.
        return features if len(leading) == 1 else features.reshape(*leading, features.shape[-1])

    @staticmethod
    def joined(parts: Iterator[Tensor]) -> Tensor:
        """[..., E] what the leaves gave, side by side."""
        found = list(parts)
        return found[0] if len(found) == 1 else torch.cat(found, -1)


def channels_last(images: Tensor, layout: ImageLayout) -> Tensor:
    """[M, H, W, C] of images [M, *shape], in this order in memory."""
    front = range(layout.height_axis)
    behind = range(layout.height_axis + 2, len(layout.shape))
    order = (layout.height_axis, layout.height_axis + 1, *front, *behind)
    channels, height, width = layout.channels_first
    in_memory = images.permute(0, *(1 + axis for axis in order)).reshape(-1, height, width, channels)
    return in_memory.contiguous()


def _convolutions(layout: ImageLayout, network: NetworkSettings, generator: torch.Generator) -> nn.Sequential:
    """From images [M, C, H, W] to features [M, encoder_size]."""
    layers = _residual(layout) if network.encoder is EncoderKind.RESNET else _plain(layout, network.encoder)
    encoder = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        width = encoder(torch.zeros(1, *layout.channels_first)).shape[-1]
    encoder.extend([nn.Linear(width, network.encoder_size), nn.ReLU(inplace=True)])
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            initialize(layer, network.initialization, GAIN, generator)
    return encoder


def _plain(layout: ImageLayout, kind: EncoderKind) -> list[nn.Module]:
    channels, height, width = layout.channels_first
    smaller = (_CONVOLUTIONS[kind], _OF_SMALL_IMAGES, _CONVOLUTIONS[EncoderKind.MATCH3])
    filters = next(filters for filters in smaller if _smallest_side(filters) <= min(height, width))
    layers: list[nn.Module] = []
    for num_filters, size, stride in filters:
        layers += [nn.Conv2d(channels, num_filters, size, stride), nn.ReLU(inplace=True)]
        channels = num_filters
    return layers


def _smallest_side(filters: Filters) -> int:
    """Of an image that all layers leave something of."""
    side = 1
    for _, size, stride in reversed(filters):
        side = (side - 1) * stride + size
    return side


def _residual(layout: ImageLayout) -> list[nn.Module]:
    channels = layout.channels_first[0]
    layers: list[nn.Module] = []
    for num_filters in _RESNET_FILTERS:
        layers += [nn.Conv2d(channels, num_filters, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [ResidualUnit(num_filters), ResidualUnit(num_filters)]
        channels = num_filters
    return [*layers, nn.ReLU(inplace=True)]


class ResidualUnit(nn.Module):
    """x + f(x), f two 3×3 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(images.relu()).relu_())
        return hidden + images
