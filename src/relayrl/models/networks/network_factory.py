"""Networks that turn features into outputs: what a policy is made of, and what a caller may bring instead.

A kernel is any `nn.Module` with `forward(features [..., F]) -> outputs [..., O]`, float32, row by row: a row's output depends
on no other row. `NetworkFactory` makes one for given widths; the built-in one makes MLPs, with convolutions in front
where the observation has images. Everything else (training, checkpoints, export) works on whatever module comes out.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.errors import ConfigError
from relayrl.models.network_settings import GoalConditioning, Initialization, NetworkSettings
from relayrl.models.networks.image_encoder import ImageEncoder
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.mlp import MLP, MODULES, initialize

_NONE = "set network.goal_conditioning (ML-Agents: goal_conditioning_type) to none"


class NetworkFactory(Protocol):
    """Makes a network of `num_outputs` outputs for what an encoder gives."""

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module: ...


class BuiltInNetworks:
    """MLPs of the settings' shape; convolutions in front of it for images."""

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network

    def _has_goals(self, layout: InputLayout) -> bool:
        """Whether goals are to make weights."""
        is_hyper = self._network.goal_conditioning is GoalConditioning.HYPER
        return is_hyper and any(part.is_goal for part in layout.encodings)

    def image_encoder(self, layout: InputLayout, generator: torch.Generator) -> ImageEncoder | None:
        """What several networks may see images through; None where there are none."""
        axes = self._network.image_layout
        if all(encoding.image_layout(axes) is None for encoding in layout.encodings):
            return None
        if self._has_goals(layout):
            raise ConfigError(f"goal_conditioning: hyper does not take observations with images; {_NONE}")
        return ImageEncoder(layout.encodings, self._network, generator)

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module:
        network = self._network
        images = self.image_encoder(encoder, generator)
        if self._has_goals(encoder):
            if not network.hidden_sizes:
                raise ConfigError(
                    f"goal_conditioning: hyper needs a hidden layer before the output, or the memory; {_NONE}"
                )
            return GoalNetwork(encoder, num_outputs, output_gain, network, generator)
        sizes = (
            encoder.num_features if images is None else images.num_outputs,
            *network.hidden_sizes,
            num_outputs,
        )
        mlp = MLP(sizes, network.activation, output_gain, generator, network.initialization)
        return mlp if images is None else ImageNetwork(images, mlp)


class GoalNetwork(nn.Module):
    """An MLP whose last hidden layer has the weights that a second network makes of the goals (Ha et al., 2016).

    As ML-Agents' `ConditionalEncoder`: the goals are among the inputs besides, and the bias is a plain parameter.
    """

    def __init__(
        self,
        layout: InputLayout,
        num_outputs: int,
        output_gain: float,
        network: NetworkSettings,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        columns = np.concatenate([np.full(part.width, part.is_goal) for part in layout.encodings])
        self._goal_columns = np.flatnonzero(columns).tolist()
        sizes, width = (layout.num_features, *network.hidden_sizes[:-1]), network.hidden_sizes[-1]
        activation, kind = MODULES[network.activation], network.initialization
        below: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            below += [_linear(fan_in, fan_out, math.sqrt(2.0), kind, generator), activation()]
        self.below, self.activation = nn.Sequential(*below), activation()
        self.hyper = nn.Sequential(
            _linear(len(self._goal_columns), width, 1.0, kind, generator),
            nn.SiLU(),
            _linear(width, width, 1.0, kind, generator),
            nn.SiLU(),
            nn.LayerNorm(width),
        )
        self.weights = nn.Linear(width, sizes[-1] * width)
        nn.init.uniform_(self.weights.weight, -((width * sizes[-1]) ** -0.5), (width * sizes[-1]) ** -0.5, generator)
        nn.init.zeros_(self.weights.bias)
        self.bias = nn.Parameter(torch.zeros(width))
        self.output = _linear(width, num_outputs, output_gain, kind, generator)

    def forward(self, features: Tensor) -> Tensor:
        weights = self.weights(self.hyper(features[..., self._goal_columns]))
        x = self.below(features)
        # [..., 1, I] @ [..., I, W]
        hidden = (x.unsqueeze(-2) @ weights.unflatten(-1, (x.shape[-1], -1))).squeeze(-2) + self.bias
        output: Tensor = self.output(self.activation(hidden))
        return output


def _linear(fan_in: int, fan_out: int, gain: float, kind: Initialization, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out)
    initialize(layer, kind, gain, generator)
    return layer


class ImageNetwork(nn.Module):
    """An image encoder of its own, then an MLP over all of it."""

    def __init__(self, images: ImageEncoder, mlp: MLP) -> None:
        super().__init__()
        self.images, self.mlp = images, mlp

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.mlp(self.images(features))
        return output
