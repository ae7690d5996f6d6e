"""Which heads the compiled kernels know."""

from __future__ import annotations

from relayrl.compiled.loader import kernels
from relayrl.models.action_head import ActionHead
from relayrl.models.box_heads import GaussianHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead

_HEADS = BuiltIns(CategoricalHead, MultiCategoricalHead, GaussianHead)


def has_kernels(head: ActionHead) -> bool:
    """Whether there are kernels, and they know the head."""
    found = kernels()
    return found is not None and head in _HEADS and len(head.part_sizes) <= found.MAX_PARTS
