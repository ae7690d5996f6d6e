"""An update of policies that see images, on a GPU: `DeviceImageUpdate` whose convolutions are kernels.

Taken are policies, encoders and optimisers of exactly RelayRL's own types. Convolutions round what they multiply to the bits of
tf32, as torch's own do unless `torch.backends.cudnn.allow_tf32` is off; then, and where a part is another, torch's are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from relayrl.accelerator.gpu.convolutions.fused_convolutions import MAX_FILTERS, Convolution, Convolved
from relayrl.accelerator.gpu.mlp_tiles import is_trained_float32
from relayrl.accelerator.gpu.row_kernels import RowKernels
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_sequences import RecurrentDeviceImageUpdate
from relayrl.algorithms.updates.device_update import DeviceImageUpdate
from relayrl.data.trees import leaves
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.image_encoder import ImageEncoder, channels_last
from relayrl.models.policy import ActorCritic
from relayrl.models.recurrent_policy import RecurrentActorCritic

if TYPE_CHECKING:
    from relayrl.algorithms.losses import Objective
    from relayrl.models.networks.image_layout import ImageLayout

_POLICIES, _OPTIMIZERS = BuiltIns(ActorCritic, RecurrentActorCritic), BuiltIns(FlatAdam)
_ENCODERS, _SEQUENCES = BuiltIns(ImageEncoder), BuiltIns(nn.Sequential)
_LAYERS = BuiltIns(nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear)


def fused_image_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> FusedImageUpdate | None:
    """An update by kernels; None where a part is not exactly what they know. Tensors lie on a CUDA device, or on the host for
    Triton's interpreter."""
    known = policy in _POLICIES and pi_optimizer in _OPTIMIZERS and vf_optimizer in _OPTIMIZERS
    if not known or policy.normalizer is not None or not torch.backends.cudnn.allow_tf32:
        return None
    encoder = fused_encoder(policy.image_encoder)
    if encoder is None:
        return None
    make = FusedRecurrentImageUpdate if policy.has_memory else FusedImageUpdate
    return make(policy, objective, pi_optimizer, vf_optimizer, encoder)


def fused_encoder(encoder: ImageEncoder | None) -> FusedEncoder | None:
    """An encoder some of whose images are convolved by kernels; None where none are."""
    if encoder is None or encoder not in _ENCODERS:
        return None
    stacks: dict[int, ConvolutionStack] = {}
    for i, (layout, encoding) in enumerate(zip(encoder.layouts, encoder.encodings, strict=True)):
        if layout is not None and encoding.has_pixels:
            stack = _stack(layout, encoder.convolutions[str(i)], 1.0 / encoding.divisor)
            if stack is not None:
                stacks[i] = stack
    return FusedEncoder(encoder, stacks) if stacks else None


def _stack(layout: ImageLayout, layers: nn.Module, scale: float) -> ConvolutionStack | None:
    """Of convolutions with relu behind each and one layer of units with it; None for anything else."""
    if layers not in _SEQUENCES or not isinstance(layers, nn.Sequential):
        return None
    kinds = [type(layer) for layer in layers]
    depth = (len(kinds) - 3) // 2
    is_known = depth > 0 and kinds == [nn.Conv2d, nn.ReLU] * depth + [nn.Flatten, nn.Linear, nn.ReLU]
    if not is_known or any(layer not in _LAYERS for layer in layers):
        return None
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    last = next(layer for layer in layers if isinstance(layer, nn.Linear))
    if not all(is_trained_float32(own) for layer in (*convolutions, last) for own in (layer.weight, layer.bias)):
        return None
    channels, height, width = layout.channels_first
    sizes = []
    for layer in convolutions:
        (size, *others), (stride, *strides) = layer.kernel_size, layer.stride
        is_plain = [size] == others and [stride] == strides and layer.padding == (0, 0) and layer.dilation == (1, 1)
        if not is_plain or layer.groups > 1 or layer.in_channels != channels or layer.out_channels > MAX_FILTERS:
            return None
        sizes.append(Convolution(height, width, channels, layer.out_channels, size, stride))
        channels, (height, width) = layer.out_channels, sizes[-1].places
    return ConvolutionStack(layout, sizes, convolutions, last, scale)


class ConvolutionStack:
    """What one image's layers give; made by `fused_encoder`, which knows for which."""

    def __init__(
        self,
        layout: ImageLayout,
        sizes: Sequence[Convolution],
        convolutions: Sequence[nn.Conv2d],
        last: nn.Linear,
        scale: float,
    ) -> None:
        """Images are multiplied by `scale`."""
        self._layout, self._sizes, self._scale = layout, sizes, scale
        self._convolutions, self._last = convolutions, last

    def __call__(self, leaf: Tensor) -> Tensor:
        """[…, E] of images […, *shape]."""
        shape = self._layout.shape
        images = channels_last(leaf.reshape(-1, *shape), self._layout)
        parameters = [parameter for layer in self._convolutions for parameter in (layer.weight, layer.bias)]
        found: Tensor = Convolved.apply(  # type: ignore[no-untyped-call]
            images, self._sizes, self._scale, *parameters
        )
        # The layer's weights are of numbers with their channels first.
        filters, places = self._sizes[-1].filters, self._sizes[-1].places
        weight = self._last.weight.view(-1, filters, *places).permute(0, 2, 3, 1).flatten(1)
        features = nn.functional.linear(found, weight, self._last.bias).relu_()
        return features.view(*leaf.shape[: leaf.ndim - len(shape)], features.shape[-1])


class FusedEncoder:
    """An `ImageEncoder` some of whose images are convolved by kernels."""

    def __init__(self, encoder: ImageEncoder, stacks: dict[int, ConvolutionStack]) -> None:
        self._encoder, self._stacks = encoder, stacks

    def of_leaves(self, leaves: Sequence[Tensor]) -> Tensor:
        """[…, E] of an observation's leaves."""
        encoder, stacks = self._encoder, self._stacks
        return encoder.joined(
            stacks[i](leaf) if i in stacks else encoder.of_leaf(i, leaf) for i, leaf in enumerate(leaves)
        )


class FusedImageUpdate(RowKernels, DeviceImageUpdate):
    """Made by `fused_image_update`, which knows for what."""

    def __init__(
        self,
        policy: ActorCritic,
        objective: Objective,
        pi_optimizer: FlatAdam,
        vf_optimizer: FlatAdam,
        encoder: FusedEncoder,
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer)
        self._encoder = encoder

    def encode(self, obs: Tensor) -> Tensor:
        return self._encoder.of_leaves([leaf for _, leaf in leaves(obs)])


class FusedRecurrentImageUpdate(FusedImageUpdate, RecurrentDeviceImageUpdate):
    """The same of policies with a memory."""
