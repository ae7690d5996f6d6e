"""The policy that on-policy algorithms train: an actor and a critic over the same, optionally normalised, observation.

It holds everything between observation and action distribution, so that what is exported is what was trained. Acting with
it is `acting`, learning is an algorithm's business.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.data.trees import Space
from relayrl.models.action_heads import GaussianHead, action_head
from relayrl.models.networks import ObservationEncoder, RunningNormalizer
from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import NetworkSettings

ACTOR_OUTPUT_GAIN = 0.01
"""Small last layer: the first policy is nearly uniform, whatever the observation (Andrychowicz et al., 2021)."""


class ActorCritic(nn.Module):
    """Distribution parameters and value of an observation."""

    action_scale: Tensor
    action_center: Tensor

    def __init__(
        self, observation_space: Space, action_space: Space, network: NetworkSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.observation_space, self.action_space, self.network = observation_space, action_space, network
        self.head = action_head(action_space)
        self.encoder = ObservationEncoder(observation_space)
        width = self.encoder.num_features
        self.normalizer = self._make_normalizer() if network.normalize_observations else None
        self.return_normalizer = RunningNormalizer(1)
        outputs = self.head.num_outputs
        if isinstance(self.head, GaussianHead):
            outputs = self.head.num_actions
            self.register_buffer("action_scale", torch.from_numpy(self.head.half_range))
            self.register_buffer("action_center", torch.from_numpy(self.head.center))
            self.log_std = nn.Parameter(torch.full((outputs,), network.log_std_init))
        hidden, activation = network.hidden_sizes, network.activation
        self.actor = Perceptron((width, *hidden, outputs), activation, ACTOR_OUTPUT_GAIN, generator)
        self.critic = Perceptron((width, *hidden, 1), activation, 1.0, generator)

    def _make_normalizer(self) -> RunningNormalizer:
        adapts = np.concatenate([np.full(e.width, e.is_continuous) for e in self.encoder.encodings])
        return RunningNormalizer(self.encoder.num_features, adapts)

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the policy's loss trains."""
        own = list(self.actor.parameters())
        return [*own, self.log_std] if isinstance(self.head, GaussianHead) else own

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the value's loss trains."""
        return list(self.critic.parameters())

    def features(self, obs: Any) -> Tensor:
        """[..., F] what both networks see."""
        encoded: Tensor = self.encoder(obs)
        return encoded if self.normalizer is None else self.normalizer(encoded)

    def distribution(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., P] parameters of the action distribution, in the environment's units."""
        outputs: Tensor = self.actor(features)
        if isinstance(self.head, GaussianHead):
            mean = outputs * self.action_scale + self.action_center
            log_std = self.log_std + self.action_scale.log()
            outputs = torch.cat([mean, log_std.expand_as(mean)], -1)
        return self.head.parameters(outputs, mask)

    def normalized_value(self, features: Tensor) -> Tensor:
        """[…] the critic's output, in normalised returns."""
        value: Tensor = self.critic(features)
        return value.squeeze(-1)

    def value(self, features: Tensor) -> Tensor:
        """[…] the value in units of reward."""
        return self.normalized_value(features) / self.return_normalizer.scale + self.return_normalizer.shift

    def forward(self, obs: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Distribution parameters and value: the graph that is exported."""
        features = self.features(obs)
        return self.distribution(features, mask), self.value(features)


def parameter_hash(module: nn.Module) -> str:
    """SHA-256 over every parameter and buffer, names included: equal hashes mean equal policies, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
