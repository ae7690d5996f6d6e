"""A policy: everything between an observation and the distribution of its action. What acts, and what is exported.

Algorithms add what they need to learn (Q-networks, targets) beside it. Those that learn from their own rollouts train an
`ActorCritic`, whose critic shares nothing with the actor but the encoder of images. A central critic sees the whole
environment and serves training alone: what is exported of such a policy is its actor.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.data.trees import Array, Space, leaves
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import ActionHead, LikelihoodHead
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.image_encoder import ImageEncoder
from relayrl.models.networks.input_layout import InputLayout, SideBySide, plain_numbers
from relayrl.models.networks.network_factory import BuiltInNetworks, NetworkFactory
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer

ACTOR_OUTPUT_GAIN = 0.01
"""Small last layer: the first policy is nearly the same for every observation (Andrychowicz et al., 2021)."""


class Policy(nn.Module):
    """Encoder, optional normalisation, the encoder of images that several networks share, actor network and head."""

    has_memory: ClassVar[bool] = False
    head: ActionHead
    action_scale: Tensor
    action_center: Tensor

    def __init__(
        self,
        observation_space: Space,
        head: ActionHead,
        network: NetworkSettings,
        generator: torch.Generator,
        kernels: NetworkFactory | None = None,
        *,
        shares_encoder: bool = False,
    ) -> None:
        """`kernels` makes the networks; without it they are MLPs of the settings' shape.

        With `shares_encoder`, built-in networks see images through `image_encoder`, whose outputs are `features` then.
        """
        super().__init__()
        if network.memory is not None and not self.has_memory:
            raise ConfigError(
                "network.memory needs an algorithm that learns from whole sequences: ppo, appo, impala, reinforce, or one of "
                "their i… and ma… forms; leave it out for others, or stack the last observations in the environment"
            )
        self.kernels = self.networks(network, kernels)
        self.observation_space, self.network = observation_space, network
        self.head = head
        self.encoder = ObservationEncoder(observation_space)
        self.normalizer = self._make_normalizer() if network.normalize_observations else None
        outputs = head.num_network_outputs
        for name, numbers in head.scales.items():
            self.register_buffer(name, torch.from_numpy(numbers))
        if head.learns_log_std:
            self.log_std = nn.Parameter(torch.full((head.num_log_stds,), network.log_std_init))
        shares = shares_encoder and network.shared_encoder and isinstance(self.kernels, BuiltInNetworks)
        self.image_encoder = self.kernels.image_encoder(self.encoder, generator) if shares else None  # type: ignore[attr-defined]
        self.actor = self.kernels(self.features_layout, outputs, ACTOR_OUTPUT_GAIN, generator)

    @staticmethod
    def networks(network: NetworkSettings, given: NetworkFactory | None) -> NetworkFactory:
        """What makes actor and critic: the `given` one, or MLPs of the settings' shape."""
        return given or BuiltInNetworks(network)

    @property
    def features_layout(self) -> InputLayout:
        """What `features` consist of."""
        return (
            self.encoder if self.image_encoder is None else SideBySide([plain_numbers(self.image_encoder.num_outputs)])
        )

    @property
    def memory_width(self) -> int:
        """Numbers that are remembered from step to step; 0 without a memory."""
        return 0

    @property
    def action_space(self) -> Space:
        """What the head's actions belong to."""
        return self.head.space

    def _make_normalizer(self) -> RunningNormalizer:
        adapts = np.concatenate([np.full(e.width, e.is_continuous) for e in self.encoder.encodings])
        return RunningNormalizer(self.encoder.num_features, adapts)

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the policy's loss trains, but for a shared encoder."""
        own = list(self.actor.parameters())
        return [*own, self.log_std] if self.head.learns_log_std else own

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Those of the shared encoder of images, which belong to the loss that an algorithm trains it by."""
        return [] if self.image_encoder is None else list(self.image_encoder.parameters())

    @property
    def constants(self) -> dict[str, Tensor]:
        """What the head's `scaled` and `mode_torch` take: its scales, and the deviation where that is the policy's own."""
        found: dict[str, Tensor] = {name: getattr(self, name) for name in self.head.scales}
        return {**found, "log_std": self.log_std} if self.head.learns_log_std else found

    def features(self, obs: Any, image_encoder: ImageEncoder | None = None) -> Tensor:
        """[..., F] what the networks see, images through the policy's encoder or another one like it."""
        images = self.image_encoder if image_encoder is None else image_encoder
        if images is not None and self.normalizer is None:
            return images.of_leaves([leaf for _, leaf in leaves(obs)])
        encoded: Tensor = self.encoder(obs)
        encoded = encoded if self.normalizer is None else self.normalizer(encoded)
        return encoded if images is None else images(encoded)

    def features_numpy(self, obs: Any) -> Array:
        """[M, F] the same for a NumPy tree with one leading axis, as contiguous float32."""
        encoded, normalizer = self.encoder.encode_numpy(obs), self.normalizer
        return np.ascontiguousarray(encoded if normalizer is None else normalizer.on_host()(encoded), np.float32)

    def distribution(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., P] parameters of the action distribution, as the head lays them out."""
        return self.distribution_of(self.actor(features), mask)

    def distribution_of(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """The same from the actor network's outputs."""
        return self.head.parameters(self.head.scaled(outputs, self.constants), mask)


class ActorCritic(Policy):
    """Distribution parameters and value of an observation."""

    head: LikelihoodHead

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        network: NetworkSettings,
        generator: torch.Generator,
        central: InputLayout | None = None,
        kernels: NetworkFactory | None = None,
        head: LikelihoodHead | None = None,
    ) -> None:
        """With `central`, the critic sees that much of the whole environment instead of the observation."""
        chosen, shares = head or likelihood_head(action_space), {"shares_encoder": central is None}
        super().__init__(observation_space, chosen, network, generator, kernels, **shares)
        self.is_central = central is not None
        normalizes = central is not None and network.normalize_observations
        self.critic_normalizer = RunningNormalizer(central.num_features) if central is not None and normalizes else None
        self.critic = self.kernels(self.features_layout if central is None else central, 1, 1.0, generator)
        self.return_normalizer = RunningNormalizer(1)

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the policy's loss trains: the shared encoder too, to which the value's loss adds its gradient."""
        return [*super().actor_parameters(), *self.encoder_parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the value's loss trains alone."""
        return list(self.critic.parameters())

    def normalized_value(self, features: Tensor) -> Tensor:
        """[…] the critic's output, in normalised returns."""
        value: Tensor = self.critic(features)
        return value.squeeze(-1)

    def value(self, features: Tensor) -> Tensor:
        """[…] the value in units of reward."""
        return self.in_units_of_reward(self.normalized_value(features))

    def in_units_of_reward(self, normalized_value: Tensor) -> Tensor:
        """[…] values from what the critic gives."""
        return normalized_value / self.return_normalizer.scale + self.return_normalizer.shift

    def forward(self, obs: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Distribution parameters and value."""
        features = self.features(obs)
        return self.distribution(features, mask), self.value(features)


def parameter_hash(module: nn.Module) -> str:
    """SHA-256 over every parameter and buffer, names included: equal hashes mean equal policies, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
