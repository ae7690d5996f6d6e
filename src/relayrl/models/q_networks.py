"""Q-networks: one or several perceptrons that judge features together with actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import NetworkSettings


class QNetworks(nn.Module):
    """`count` independent judges of the same input; actions come scaled to [−1, 1]."""

    def __init__(self, width: int, count: int, network: NetworkSettings, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (width, *network.hidden_sizes, 1)
        self.judges = nn.ModuleList(Perceptron(sizes, network.activation, 1.0, generator) for _ in range(count))

    def forward(self, inputs: Tensor) -> Tensor:
        """[Q, …] every judge's value of `inputs` [..., width]."""
        return torch.stack([judge(inputs).squeeze(-1) for judge in self.judges])
