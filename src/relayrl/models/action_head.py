"""Action distributions: what a policy's output vector means, once in torch (learning) and once in NumPy (acting).

A head belongs to an action space. The network gives it `num_outputs` raw numbers, which become the distribution's parameters
`[…, P]`: the only thing an exported graph must output, since drawing an action from them is NumPy everywhere.

    Discrete        log-probabilities, masked ones at MASKED_LOGIT before the softmax        `discrete_heads`
    MultiDiscrete   the components' log-probabilities side by side
    MultiBinary     logits of the ones
    Box             mean and log standard deviation side by side, or the action itself        `box_heads`

torch is not imported: tensors come in, and their own methods are called, so an actor without torch can use these files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from relayrl.data.trees import Array, Space

if TYPE_CHECKING:
    from torch import Tensor


class HeadKind(Enum):
    """How actions are distributed; files of policies name it."""

    STOCHASTIC = "stochastic"
    SQUASHED = "squashed"
    DETERMINISTIC = "deterministic"


class ActionHead(ABC):
    """The distribution over one action space: what acting needs of it."""

    kind = HeadKind.STOCHASTIC
    space: Space
    num_outputs: int
    num_parameters: int
    mask_width: int | None = None
    noise_scale: float = 0.0
    """Exploration noise that `sample` adds by itself, in units of half the action range."""

    @abstractmethod
    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Distribution parameters [..., P] from raw network outputs and the action mask."""

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        """The same as `parameters`, in NumPy; the outputs themselves unless overridden."""
        return outputs

    @abstractmethod
    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        """Actions drawn with `rng`; the same parameters and generator state give the same actions everywhere."""

    @abstractmethod
    def mode(self, parameters: Array) -> Array:
        """The most likely action."""

    def to_environment(self, action: Array) -> Array:
        """The action as the environment takes it."""
        return action


class LikelihoodHead(ActionHead):
    """A distribution whose log-probabilities on-policy algorithms differentiate."""

    @abstractmethod
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """[…] log density of `action` [..., *action shape]."""

    @abstractmethod
    def entropy(self, parameters: Tensor) -> Tensor:
        """[…] entropy in nats."""

    @abstractmethod
    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        """[…] the same as `log_prob`, in NumPy."""

    @abstractmethod
    def entropy_numpy(self, parameters: Array) -> Array:
        """[…] the same as `entropy`, in NumPy."""
