"""The policy that on-policy algorithms train: an actor, and a critic that shares nothing with it.

A central critic judges the whole environment and serves training alone: what is exported of such a policy is its actor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relayrl.data.trees import Space
from relayrl.models.heads.action_head import LikelihoodHead
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.models.networks.observation_encoder import RunningNormalizer
from relayrl.models.policy import Policy


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
    ) -> None:
        """With `central`, the critic sees that much of the whole environment instead of the observation."""
        super().__init__(observation_space, likelihood_head(action_space), network, generator, kernels)
        self.is_central = central is not None
        normalizes = central is not None and network.normalize_observations
        self.critic_normalizer = RunningNormalizer(central.num_features) if central is not None and normalizes else None
        self.critic = self.kernels(self.encoder if central is None else central, 1, 1.0, generator)
        self.return_normalizer = RunningNormalizer(1)

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the value's loss trains."""
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
