"""Networks that a caller of the facade brings: a `NetworkFactory`, or finished modules for the actor and its critics.

What a network must do is in `relayrl.models.networks.network_factory`, and `relayrl.testing.check_network` checks it.
Finished modules are copied for every policy group, so they must fit the spaces of all of them. A critic sees what the
algorithm's critics see: the
observation, the whole environment (`ma…`), and for learning from replay the actions behind it.
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import torch
from torch import nn

from relayrl.errors import ConfigError
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.network_factory import BuiltInNetworks, NetworkFactory

Critics: TypeAlias = "nn.Module | tuple[nn.Module, ...] | None"
ModulePair: TypeAlias = tuple[nn.Module, Critics]
"""The actor and its critic; critics where an algorithm has several (twin Q-networks of TD3 and SAC); None: built-in ones."""
Kernel: TypeAlias = "NetworkFactory | ModulePair"


class PairKernels:
    """Gives copies of finished modules: the actor's first, then the critics'."""

    def __init__(self, actor: nn.Module, critics: Critics, built_in: NetworkFactory) -> None:
        self._actor: nn.Module | None = actor
        self._critics = (critics,) if isinstance(critics, nn.Module) else critics or ()
        self._built_in = None if self._critics else built_in
        self._num_made = 0

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module:
        actor, self._actor = self._actor, None
        if actor is not None:
            return _fitting(actor, "actor", encoder, num_outputs)
        if self._built_in is not None:
            return self._built_in(encoder, num_outputs, output_gain, generator)
        if self._num_made == len(self._critics):
            raise ConfigError(
                f"the kernel has {len(self._critics)} critics, and this algorithm learns more; copies of one would stay the "
                "same: give (actor, (critic, other critic)), or a NetworkFactory"
            )
        self._num_made += 1
        return _fitting(self._critics[self._num_made - 1], "critic", encoder, num_outputs)

    def require_used(self, algo: str) -> None:
        """Refuse critics that nobody asked for."""
        if self._num_made < len(self._critics):
            raise ConfigError(
                f"{algo} has {self._num_made} critics a policy, the kernel {len(self._critics)}; give as many"
            )


def _fitting(module: nn.Module, role: str, encoder: InputLayout, num_outputs: int) -> nn.Module:
    """A copy that takes and gives as many numbers as it must."""
    network = copy.deepcopy(module)
    with torch.no_grad():
        try:
            shape = tuple(network(torch.zeros(2, encoder.num_features)).shape)
        except RuntimeError as error:
            raise ConfigError(f"the kernel's {role} does not take [2, {encoder.num_features}]: {error}") from error
    if shape != (2, num_outputs):
        raise ConfigError(f"the kernel's {role} gives {list(shape)} for two rows; expected [2, {num_outputs}]")
    return network


def kernels_for_one_policy(kernel: Kernel | None, network: NetworkSettings) -> NetworkFactory | None:
    """What makes the networks of the next policy; `network` is the shape of those that the caller leaves to us."""
    if not isinstance(kernel, tuple):
        return kernel
    actor, critics = kernel
    return PairKernels(actor, critics, BuiltInNetworks(network))
