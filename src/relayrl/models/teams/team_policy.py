"""An `ActorCritic` whose critic is that of a team. It acts as any other; its critic serves training alone."""

from __future__ import annotations

import torch

from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.models.policy import ActorCritic
from relayrl.models.teams.team_critic import TeamCritic


class TeamActorCritic(ActorCritic):
    """A policy whose critic is that of its team."""

    critic: TeamCritic

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        network: NetworkSettings,
        generator: torch.Generator,
        num_heads: int,
        kernels: NetworkFactory | None = None,
    ) -> None:
        if network.memory is not None:
            raise ConfigError("poca has no form with network.memory; use mappo, or stack the last observations")
        super().__init__(observation_space, action_space, network, generator, None, kernels)
        self.is_central = True  # not exported: it judges teams
        self.action_encoder = ObservationEncoder(action_space)
        num_actions = self.action_encoder.num_features
        self.critic = TeamCritic(self.encoder, num_actions, num_heads, network, self.kernels, generator)
