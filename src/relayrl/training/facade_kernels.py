"""Networks that a caller of the facade brings: a `KernelFactory`, or finished modules for the actor and the critic.

What a network must do is in `relayrl.models.kernels`, and `relayrl.testing.kernel_contract` checks it. Finished modules are
copied for every policy group, so they must fit the spaces of all of them.
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import torch
from torch import nn

from relayrl.errors import ConfigError
from relayrl.models.input_layout import InputLayout
from relayrl.models.kernels import KernelFactory

ModulePair: TypeAlias = tuple[nn.Module, nn.Module | None]
Kernel: TypeAlias = "KernelFactory | ModulePair"


class PairKernels:
    """Gives copies of finished modules: the actor's first, then the critic's."""

    def __init__(self, actor: nn.Module, critic: nn.Module | None) -> None:
        self._roles = {"actor": actor} if critic is None else {"actor": actor, "critic": critic}

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module:
        if not self._roles:
            raise ConfigError("the kernel has no critic, and this algorithm learns one; give (actor, critic)")
        role = next(iter(self._roles))
        network = copy.deepcopy(self._roles.pop(role))
        with torch.no_grad():
            try:
                shape = tuple(network(torch.zeros(2, encoder.num_features)).shape)
            except RuntimeError as error:
                raise ConfigError(f"the kernel's {role} does not take [2, {encoder.num_features}]: {error}") from error
        if shape != (2, num_outputs):
            raise ConfigError(f"the kernel's {role} gives {list(shape)} for two rows; expected [2, {num_outputs}]")
        return network

    def require_used(self, algo: str) -> None:
        """Refuse a critic that nobody asked for."""
        if self._roles:
            raise ConfigError(
                f"{algo} makes its own critics, and would ignore the kernel's; give (actor, None), or a KernelFactory"
            )


def kernels_for_one_policy(kernel: Kernel | None) -> KernelFactory | None:
    """What makes the networks of the next policy."""
    if not isinstance(kernel, tuple):
        return kernel
    actor, critic = kernel
    return PairKernels(actor, critic)
