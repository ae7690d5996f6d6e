"""A network with a memory: hidden layers, a recurrent cell behind them, and a linear layer of outputs.

The hidden layers are whatever kernel a policy would have without a memory (MLP, convolutions for images, a caller's
own), with as many outputs as the settings' last hidden layer has units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.networks.image_encoder import ImageEncoder
from relayrl.models.networks.input_layout import InputLayout
from relayrl.models.networks.memory_cell import MemoryCell
from relayrl.models.networks.mlp import MODULES, initialize
from relayrl.models.networks.network_factory import BuiltInNetworks, NetworkFactory

HIDDEN_GAIN = 2.0**0.5


class RecurrentNetwork(nn.Module):
    """Outputs of features and of what was before them."""

    def __init__(
        self,
        trunk: nn.Module,
        num_features: int,
        num_outputs: int,
        output_gain: float,
        network: NetworkSettings,
        generator: torch.Generator,
    ) -> None:
        """`trunk` gives `num_features` features of each row."""
        super().__init__()
        self.trunk, self.activation = trunk, MODULES[network.activation]()
        self.cell = MemoryCell(num_features, memory_of(network), generator)
        self.output = nn.Linear(self.cell.num_outputs, num_outputs)
        initialize(self.output, network.initialization, output_gain, generator)

    @property
    def memory_width(self) -> int:
        """Numbers that are remembered."""
        return self.cell.width

    def hidden(self, features: Tensor) -> Tensor:
        """[..., H] what the cell sees of `features` [..., F]."""
        hidden: Tensor = self.activation(self.trunk(features))
        return hidden

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[..., O] outputs of `features` [..., F] with `memory` [..., M], and the memory after."""
        return self.step_hidden(self.hidden(features), memory)

    def step_hidden(self, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The same from what the cell sees."""
        seen, after = self.cell.step(hidden, memory)
        return self.output(seen), after

    def unroll(self, features: Tensor, batch_sizes: Tensor, memory: Tensor) -> Tensor:
        """[R, O] outputs of packed sequences, as `MemoryCell.unroll` describes them."""
        outputs: Tensor = self.output(self.cell.unroll(self.hidden(features), batch_sizes, memory))
        return outputs


class RecurrentNetworks(BuiltInNetworks):
    """Makes recurrent networks out of a factory of hidden layers."""

    def __init__(self, network: NetworkSettings, trunks: NetworkFactory | None) -> None:
        super().__init__(network)
        self._encodes_images = trunks is None
        *before, self._width = network.hidden_sizes or (memory_of(network).size,)
        self._trunks = trunks or BuiltInNetworks(network.model_copy(update={"hidden_sizes": tuple(before)}))

    def image_encoder(self, layout: InputLayout, generator: torch.Generator) -> ImageEncoder | None:
        return super().image_encoder(layout, generator) if self._encodes_images else None

    def __call__(
        self, encoder: InputLayout, num_outputs: int, output_gain: float, generator: torch.Generator
    ) -> nn.Module:
        trunk = self._trunks(encoder, self._width, HIDDEN_GAIN, generator)
        return RecurrentNetwork(trunk, self._width, num_outputs, output_gain, self._network, generator)


def memory_of(network: NetworkSettings) -> MemorySettings:
    """The memory of settings that have one."""
    assert network.memory is not None
    return network.memory
