"""Q-networks: one or several networks that judge features together with actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.network_factory import NetworkFactory


class QNetworks(nn.Module):
    """`count` independent judges of the same input; actions come scaled to [−1, 1]."""

    def __init__(self, layout: InputLayout, count: int, kernels: NetworkFactory, generator: torch.Generator) -> None:
        super().__init__()
        self.judges = nn.ModuleList(kernels(layout, 1, 1.0, generator) for _ in range(count))

    def forward(self, inputs: Tensor) -> Tensor:
        """[Q, …] every judge's value of `inputs` [..., F]."""
        return torch.stack([judge(inputs).squeeze(-1) for judge in self.judges])
