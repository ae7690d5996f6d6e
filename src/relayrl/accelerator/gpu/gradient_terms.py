"""What kernels take of a minibatch: a network and its gradient, the head, and the columns and settings of the losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from relayrl.accelerator.gpu.mlp_tiles import MLPShape

MULTIPROCESSORS = 132
"""Of the GPU that sizes of grids are chosen for."""
NUM_POLICY_SUMS, NUM_VALUE_SUMS = 4, 1
"""Numbers that a loss gives besides its gradient."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What kernels must know of a head: the options of each choice, none for a normal distribution."""

    parts: tuple[int, ...]
    starts: tuple[int, ...]
    """The first action of each choice."""

    @property
    def constants(self) -> dict[str, Any]:
        """Arguments of kernels."""
        begins = tuple(sum(self.parts[:i]) for i in range(len(self.parts)))
        return {"PARTS": self.parts, "BEGINS": begins, "STARTS": self.starts}


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """Columns and settings of a policy's loss."""

    action: Tensor
    mask: Tensor | None
    logp: Tensor
    advantage: Tensor
    scale: Tensor | None
    center: Tensor | None
    clip_ratio: float | None
    entropy_coef: float

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Columns, as kernels take them."""
        return self.action, self.mask, self.logp, self.advantage, self.scale, self.center

    @property
    def numbers(self) -> tuple[float, float]:
        """Settings, as kernels take them."""
        return self.clip_ratio or 0.0, self.entropy_coef

    @property
    def constants(self) -> dict[str, bool]:
        """Arguments of kernels."""
        return {"HAS_MASK": self.mask is not None, "IS_CLIPPED": self.clip_ratio is not None}


@dataclass(frozen=True, slots=True)
class ValueTerms:
    """Columns and settings of a value's loss."""

    old_value: Tensor
    target: Tensor
    clip: float | None


@dataclass(frozen=True, slots=True)
class Network:
    """A network's parameters and gradient, and what it sees of all rows."""

    shape: MLPShape
    vector: Tensor
    gradient: Tensor
    features: Tensor
