"""Q-networks: one or several critics of features together with actions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.network_factory import NetworkFactory


class QNetworks(nn.Module):
    """`count` independent critics of the same input; actions come scaled to [−1, 1]."""

    def __init__(self, layout: InputLayout, count: int, kernels: NetworkFactory, generator: torch.Generator) -> None:
        super().__init__()
        self.critics = nn.ModuleList(kernels(layout, 1, 1.0, generator) for _ in range(count))
        self.register_load_state_dict_pre_hook(_rename)  # type: ignore[no-untyped-call]

    def forward(self, inputs: Tensor) -> Tensor:
        """[Q, …] every critic's value of `inputs` [..., F]."""
        return torch.stack([critic(inputs).squeeze(-1) for critic in self.critics])


def _rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Take checkpoints of before the critics were called so."""
    old = f"{prefix}judges."
    for name in [name for name in state if name.startswith(old)]:
        state[f"{prefix}critics.{name.removeprefix(old)}"] = state.pop(name)
