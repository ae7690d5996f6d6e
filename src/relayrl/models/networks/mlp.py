"""MLPs: the torch module, which is exported, runs on any device and is the reference that tests hold faster twins to.

On the CPU torch spends more on overhead per operation than on the arithmetic of small networks: there, acting and learning run
the compiled kernels of `relayrl.accelerator`, for modules for which `is_plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from relayrl.models.network_settings import Activation, Initialization
from relayrl.models.networks.built_in import BuiltIns

MODULES: dict[Activation, type[nn.Module]] = {Activation.TANH: nn.Tanh, Activation.RELU: nn.ReLU}


def initialize(
    layer: nn.Linear | nn.Conv2d, initialization: Initialization, gain: float, generator: torch.Generator
) -> None:
    """Draw a layer's first weights; `gain` is for orthogonal ones."""
    bias = [] if layer.bias is None else [layer.bias]
    if initialization is Initialization.ORTHOGONAL:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        for parameter in bias:
            nn.init.zeros_(parameter)
        return
    bound = layer.weight[0].numel() ** -0.5
    for parameter in (layer.weight, *bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


class MLP(nn.Sequential):
    """Linear layers with an activation between them."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Activation,
        output_gain: float,
        generator: torch.Generator,
        initialization: Initialization = Initialization.ORTHOGONAL,
    ) -> None:
        """`sizes` from input to output; orthogonal hidden layers have gain √2, the last one `output_gain`."""
        layers: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            is_last = i == len(sizes) - 2
            linear = nn.Linear(fan_in, fan_out)
            initialize(linear, initialization, output_gain if is_last else 2.0**0.5, generator)
            layers += [linear] if is_last else [linear, MODULES[activation]()]
        super().__init__(*layers)
        self.activation = activation

    def linears(self) -> list[nn.Linear]:
        """The layers that have parameters."""
        return [layer for layer in self if isinstance(layer, nn.Linear)]


_NETWORKS, _LAYERS = BuiltIns(MLP), BuiltIns(nn.Linear, *MODULES.values())


def is_plain(network: nn.Module) -> bool:
    """Whether a network is a `MLP` on the CPU whose layers and methods are the built-in ones, without hooks."""
    if network not in _NETWORKS or not isinstance(network, MLP):
        return False
    layers = list(network)
    kinds = [MODULES[network.activation] if i % 2 else nn.Linear for i in range(len(layers))]
    if (
        [type(layer) for layer in layers] != kinds
        or not len(layers) % 2
        or any(layer not in _LAYERS for layer in layers)
    ):
        return False
    linears = network.linears()
    is_chain = all(below.out_features == above.in_features for below, above in pairwise(linears))
    return is_chain and all(_is_plain_parameter(p) for layer in linears for p in (layer.weight, layer.bias))


def _is_plain_parameter(parameter: torch.Tensor | None) -> bool:
    """Whether NumPy can view a parameter's memory, and no hook changes its gradients."""
    return (
        type(parameter) is nn.Parameter
        and parameter.device.type == "cpu"
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
        and not parameter._backward_hooks
    )
