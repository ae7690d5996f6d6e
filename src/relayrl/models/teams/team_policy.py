"""An `ActorCritic` whose critic is that of a team. It acts as any other; its critic serves training alone."""

from __future__ import annotations

import torch

from relayrl.data.trees import Space
from relayrl.models.heads.action_head import LikelihoodHead
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.models.policy import ActorCritic
from relayrl.models.teams.team_critic import TeamCritic, TeamNetworks


class TeamActorCritic(ActorCritic):
    """A policy whose critic is that of its team."""

    critic: TeamCritic

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        network: NetworkSettings,
        generator: torch.Generator,
        attention_size: int,
        num_heads: int,
        kernels: NetworkFactory | None = None,
        head: LikelihoodHead | None = None,
    ) -> None:
        apart = network.model_copy(update={"shared_encoder": False})  # the critic sees what all of the team see
        super().__init__(observation_space, action_space, apart, generator, None, kernels, head)
        self.network, self.is_central = network, True  # its critic is not exported: it values teams
        self.action_encoder = ObservationEncoder(action_space)
        num_actions = self.action_encoder.num_features
        networks = TeamNetworks.built_in(network) if kernels is None else TeamNetworks(kernels, kernels)
        self.critic = TeamCritic(self.encoder, num_actions, attention_size, num_heads, network, networks, generator)
