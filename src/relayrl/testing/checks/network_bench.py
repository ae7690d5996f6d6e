"""What checks of the kernel contract work with: networks that a factory makes, and observations for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.data.trees import Space, leaf_dtype, space_leaves, unflatten
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.models.policy import ACTOR_OUTPUT_GAIN, ActorCritic

NUM_ROWS = 32


@dataclass(frozen=True, slots=True)
class Role:
    """What a network is for."""

    name: str
    num_outputs: int
    output_gain: float


class NetworkBench:
    """Makes networks with a factory, and observations for them."""

    def __init__(self, factory: NetworkFactory, observation_space: Space, action_space: Space, seed: int) -> None:
        self.factory, self.observation_space, self.action_space = factory, observation_space, action_space
        self.encoder, self._seed = ObservationEncoder(observation_space), seed
        outputs = likelihood_head(action_space).num_network_outputs
        self.roles = (Role("actor", outputs, ACTOR_OUTPUT_GAIN), Role("critic", 1, 1.0))

    def make(self, role: Role, seed: int = 0) -> nn.Module:
        """A network; the same seed gives the same generator."""
        generator = torch.Generator().manual_seed(self._seed + seed)
        return self.factory(self.encoder, role.num_outputs, role.output_gain, generator)

    def networks(self) -> Iterator[tuple[str, nn.Module]]:
        """One network per role, moved away from where it begins."""
        generator = torch.Generator().manual_seed(self._seed)
        for role in self.roles:
            network = self.make(role)
            shake(network, generator)
            yield role.name, network

    def observations(self, num_rows: int) -> Any:
        """A NumPy tree with leading axis `num_rows`."""
        flat = []
        for i, (_, leaf) in enumerate(space_leaves(self.observation_space)):
            leaf.seed(self._seed + i)
            flat.append(np.stack([np.asarray(leaf.sample(), leaf_dtype(leaf)) for _ in range(num_rows)]))
        return unflatten(self.observation_space, iter(flat))

    def features(self, num_rows: int = NUM_ROWS) -> Tensor:
        """[M, F] what kernels see."""
        return torch.from_numpy(self.encoder.encode_numpy(self.observations(num_rows)).astype(np.float32))

    def policy(self) -> ActorCritic:
        """A policy of networks of the factory, moved in the same way."""
        generator = torch.Generator().manual_seed(self._seed)
        spaces = (self.observation_space, self.action_space)
        policy = ActorCritic(*spaces, NetworkSettings(), generator, kernels=self.factory)
        shake(policy, generator)
        return policy


def shake(network: nn.Module, generator: torch.Generator) -> None:
    """Move parameters away from whatever they begin as: a last layer of zeros would hide what is before it."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
