"""What deterministic and squashed normal policies do, from their networks' outputs: `ActionHead.rsample` in a launch or two."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu.replay.squashed_kernels import draw_kernel, slopes_kernel
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.box_heads import DeterministicHead, SquashedGaussianHead
from relayrl.models.networks.built_in import BuiltIns

BLOCK = 256
_POINT, _SQUASHED = BuiltIns(DeterministicHead), BuiltIns(SquashedGaussianHead)


def is_known_head(head: ActionHead) -> bool:
    """Whether `chosen` stands for a head's methods."""
    return head in _POINT or head in _SQUASHED


def chosen(head: ActionHead, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """[L, A] and [L] what `head.rsample` gives for its `parameters` of `outputs` [L, O], for a head that is known."""
    if head in _POINT:  # an action in units of half the range has neither center nor scale
        return outputs.tanh(), outputs.new_zeros(()).expand(len(outputs))
    action, logp = _Draw.apply(outputs.contiguous(), noise)  # type: ignore[no-untyped-call]
    return action, logp


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action, logp = torch.empty_like(noise), outputs.new_empty(len(outputs))
        ctx.save_for_backward(outputs, noise)
        ctx.sizes = {"A": noise.shape[1], "BLOCK": BLOCK}
        ctx.grid = (triton.cdiv(len(outputs), BLOCK),)
        draw_kernel[ctx.grid](outputs, noise, action, logp, len(outputs), **ctx.sizes)
        return action, logp

    @staticmethod
    def backward(ctx: Any, by_action: Tensor, by_logp: Tensor) -> tuple[Tensor, None]:
        outputs, noise = ctx.saved_tensors
        found = torch.empty_like(outputs)
        given = by_action.contiguous(), by_logp.contiguous()
        slopes_kernel[ctx.grid](outputs, noise, *given, found, len(outputs), **ctx.sizes)
        return found, None
