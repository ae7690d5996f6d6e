"""Networks that turn features into outputs: what a policy is made of, and what a caller may bring instead.

A kernel is any `nn.Module` with `forward(features [..., F]) -> outputs [..., O]`, float32, row by row: a row's output depends
on no other row. `NetworkFactory` makes one for given widths; the built-in one makes MLPs, with convolutions in front
where the observation has images. Everything else (training, checkpoints, export) works on whatever module comes out.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.image_encoder import ImageEncoder
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.mlp import MLP


class NetworkFactory(Protocol):
    """Makes a network of `num_outputs` outputs for what an encoder gives."""

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module: ...


class BuiltInNetworks:
    """MLPs of the settings' shape; convolutions in front of it for images."""

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network

    def image_encoder(self, layout: InputLayout, generator: torch.Generator) -> ImageEncoder | None:
        """What several networks may see images through; None where there are none."""
        axes = self._network.image_layout
        if all(encoding.image_layout(axes) is None for encoding in layout.encodings):
            return None
        return ImageEncoder(layout.encodings, self._network, generator)

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module:
        network = self._network
        images = self.image_encoder(encoder, generator)
        sizes = (
            encoder.num_features if images is None else images.num_outputs,
            *network.hidden_sizes,
            num_outputs,
        )
        mlp = MLP(sizes, network.activation, output_gain, generator, network.initialization)
        return mlp if images is None else ImageNetwork(images, mlp)


class ImageNetwork(nn.Module):
    """An image encoder of its own, then an MLP over all of it."""

    def __init__(self, images: ImageEncoder, mlp: MLP) -> None:
        super().__init__()
        self.images, self.mlp = images, mlp

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.mlp(self.images(features))
        return output
