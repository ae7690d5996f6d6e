"""The recurrent policy that on-policy algorithms train: actor and critic with a memory each, which share nothing but
the encoder of images.

What is remembered is one row `[actor's | critic's]`, since both live through the same steps. A central critic sees the whole
environment, which no actor does: the row is then the actor's alone, and the learner keeps the critic's memory.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import LikelihoodHead
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.models.networks.recurrent_network import RecurrentNetwork, RecurrentNetworks
from relayrl.models.policy import ActorCritic


class RecurrentActorCritic(ActorCritic):
    """Distribution parameters and value of an observation and of what was before it."""

    has_memory = True
    actor: RecurrentNetwork
    critic: RecurrentNetwork

    @staticmethod
    def networks(network: NetworkSettings, given: NetworkFactory | None) -> NetworkFactory:
        """Networks with a memory; `given` makes what lies in front of it."""
        return RecurrentNetworks(network, given)

    @property
    def memory_width(self) -> int:
        own = self.actor.memory_width
        return own if self.is_central else own + self.critic.memory_width

    def split(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's and the critic's part of `memory` [..., M]; nothing is the central critic's."""
        own = self.actor.memory_width
        return memory[..., :own], memory[..., own:]

    def step(self, features: Tensor, mask: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Distribution parameters, value (none where the critic is central) and the memory after."""
        of_actor, of_critic = self.split(memory)
        outputs, actor_after = self.actor.step(features, of_actor)
        distribution = self.distribution_of(outputs, mask)
        if self.is_central:
            return distribution, None, actor_after
        value, critic_after = self.critic.step(features, of_critic)
        return distribution, self.in_units_of_reward(value.squeeze(-1)), torch.cat([actor_after, critic_after], -1)

    def distribution(self, features: Tensor, mask: Tensor | None = None) -> NoReturn:
        raise ConfigError("this policy has a memory, which decides as well; call step() instead of distribution()")

    def normalized_value(self, features: Tensor) -> NoReturn:
        raise ConfigError("this policy has a memory, which decides as well; call step() instead of value()")

    def forward(self, obs: Any, mask: Tensor | None = None, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Distribution parameters and value of the first step of an episode, or of one after `memory`."""
        features = self.features(obs)
        if memory is None:
            memory = features.new_zeros((*features.shape[:-1], self.memory_width))
        distribution, value, _ = self.step(features, mask, memory)
        if value is None:
            raise ConfigError("a central critic sees the whole environment, not an observation")
        return distribution, value


def actor_critic(
    observation_space: Space,
    action_space: Space,
    network: NetworkSettings,
    generator: torch.Generator,
    central: InputLayout | None = None,
    kernels: NetworkFactory | None = None,
    head: LikelihoodHead | None = None,
) -> ActorCritic:
    """The policy that the settings describe: with a memory where they ask for one."""
    make = ActorCritic if network.memory is None else RecurrentActorCritic
    return make(observation_space, action_space, network, generator, central, kernels, head)
