"""Networks that turn features into outputs: what a policy is made of, and what a caller may bring instead.

A kernel is any `nn.Module` with `forward(features [..., F]) -> outputs [..., O]`, float32, row by row: a row's output depends
on no other row. `NetworkFactory` makes one for given widths; the built-in one makes MLPs, with convolutions in front
where the observation has images. Everything else (training, checkpoints, export) works on whatever module comes out.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from relayrl.models.network_settings import Initialization, NetworkSettings
from relayrl.models.networks.image_layout import ImageLayout
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.mlp import MLP, initialize


class NetworkFactory(Protocol):
    """Makes a network of `num_outputs` outputs for what an encoder gives."""

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module: ...


class BuiltInNetworks:
    """MLPs of the settings' shape; convolutions in front of it for images."""

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module:
        if any(encoding.image_layout() is not None for encoding in encoder.encodings):
            return ImageNetwork(encoder, num_outputs, output_gain, self._network, generator)
        sizes = (encoder.num_features, *self._network.hidden_sizes, num_outputs)
        return MLP(sizes, self._network.activation, output_gain, generator, self._network.initialization)


class ImageNetwork(nn.Module):
    """Convolutions (Mnih et al., 2015) over every image among the features, then an MLP over all of it."""

    def __init__(
        self,
        encoder: InputLayout,
        num_outputs: int,
        output_gain: float,
        network: NetworkSettings,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._widths = [encoding.width for encoding in encoder.encodings]
        self._layouts = [encoding.image_layout() for encoding in encoder.encodings]
        self.convolutions = nn.ModuleDict()
        width = 0
        for i, (layout, num_features) in enumerate(zip(self._layouts, self._widths, strict=True)):
            if layout is None:
                width += num_features
                continue
            self.convolutions[str(i)] = _convolutions(layout, network.initialization, generator)
            with torch.no_grad():
                width += self.convolutions[str(i)](torch.zeros(1, *layout.channels_first)).shape[-1]
        sizes = (width, *network.hidden_sizes, num_outputs)
        self.mlp = MLP(sizes, network.activation, output_gain, generator, network.initialization)

    def forward(self, features: Tensor) -> Tensor:
        leading = features.shape[:-1]
        parts = []
        for i, part in enumerate(features.reshape(-1, features.shape[-1]).split(self._widths, -1)):  # type: ignore[no-untyped-call]
            layout = self._layouts[i]
            if layout is None:
                parts.append(part)
                continue
            image = part.reshape(-1, *layout.shape).permute(0, *(1 + axis for axis in layout.axes))
            parts.append(self.convolutions[str(i)](image.reshape(-1, *layout.channels_first)))
        output: Tensor = self.mlp(torch.cat(parts, -1))
        return output.reshape(*leading, output.shape[-1])


def _convolutions(layout: ImageLayout, initialization: Initialization, generator: torch.Generator) -> nn.Sequential:
    """Three layers, as for Atari, where the image is large enough for them; fewer and smaller ones where it is not."""
    channels, height, width = layout.channels_first
    plan = [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if min(height, width) >= 36 else [(32, 3, 2), (64, 3, 2)]
    layers: list[nn.Module] = []
    for filters, kernel, stride in plan:
        layer = nn.Conv2d(channels, filters, kernel, stride)
        initialize(layer, initialization, math.sqrt(2.0), generator)
        layers += [layer, nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())
