"""Action distributions: what a policy's output vector means, once in torch (learning) and once in NumPy (acting).

A head belongs to an action space. The network gives it `num_outputs` raw numbers, which become the distribution's parameters
`[…, P]`: the only thing an exported graph must output, since drawing an action from them is NumPy everywhere.

    Discrete        log-probabilities, masked ones at MASKED_LOGIT before the softmax        `discrete_heads`
    MultiDiscrete   the components' log-probabilities side by side
    MultiBinary     logits of the ones
    Box             mean and log standard deviation side by side, or the action itself        `box_heads`
    all others      the leaves' parameters side by side: Dict, Tuple, more axes, integers      `composite_head`

torch is not imported: tensors come in, and their own methods are called, so an actor without torch can use these files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Generator, Tensor


class HeadKind(Enum):
    """How actions are distributed; files of policies name it."""

    STOCHASTIC = "stochastic"
    SQUASHED = "squashed"
    DETERMINISTIC = "deterministic"


class Distribution(Enum):
    """The families of distributions that the accelerator has kernels or derivatives for."""

    CHOICE = "choice"
    CHOICES = "choices"
    BITS = "bits"
    NORMAL = "normal"
    SQUASHED_NORMAL = "squashed normal"
    POINT = "point"


class NoiseKind(Enum):
    """What random numbers are distributed like from which actions are made on a device."""

    UNIFORM = "uniform"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True)
class HeadDescription:
    """What the accelerator must know of a head, besides that it is an unchanged built-in one."""

    distribution: Distribution
    part_sizes: tuple[int, ...] = ()
    """`ActionHead.part_sizes`."""
    starts: tuple[int, ...] = ()
    """The first action of each choice."""
    scales: Mapping[str, Array] = field(default_factory=dict)
    """`ActionHead.scales`."""


class ActionHead(ABC):
    """The distribution over one action space: draws and scores actions, shows them to critics, exports and describes itself."""

    kind = HeadKind.STOCHASTIC
    space: Space
    num_outputs: int
    num_parameters: int
    mask_width: int | None = None
    noise_scale: float = 0.0
    """Exploration noise that `sample` adds by itself, in units of half the action range."""
    part_sizes: tuple[int, ...] = ()
    """How many actions each discrete choice has; none where actions are not choices."""
    has_log_prob: bool = False
    """Whether `log_prob_numpy` gives something."""
    learns_log_std: bool = False
    """Whether the policy has a deviation of its own, `log_std`, beside what its network gives."""

    @property
    def num_network_outputs(self) -> int:
        """Outputs of the policy's network."""
        return self.num_outputs

    @property
    def num_log_stds(self) -> int:
        """Numbers of `log_std`, where the policy has it."""
        return self.num_network_outputs

    @property
    def scales(self) -> dict[str, Array]:
        """Constants that the policy keeps beside its parameters, for `scaled` and `mode_torch`."""
        return {}

    @property
    def bounds(self) -> dict[str, Array]:
        """Constants that an exported policy keeps besides, for `mode_torch`."""
        return {}

    def scaled(self, outputs: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        """What `parameters` takes, from the network's outputs and the policy's `scales` (and `log_std`)."""
        return outputs

    @abstractmethod
    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Distribution parameters [..., P] from raw network outputs and the action mask."""

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        """The same as `parameters`, in NumPy; the outputs themselves unless overridden."""
        return outputs

    @abstractmethod
    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        """Actions drawn with `rng`; the same parameters and generator state give the same actions everywhere."""

    def sample_uniform(self, num_rows: int, mask: Array | None, rng: np.random.Generator) -> Array:
        """Actions of a policy that prefers none of those that are allowed."""
        indifferent = np.zeros((num_rows, self.num_outputs), np.float32)
        return self.sample(self.parameters_numpy(indifferent, mask), rng)

    @property
    def noise(self) -> tuple[NoiseKind, int] | None:
        """Which random numbers, and how many, `sample_torch` takes for an action; None where it cannot."""
        return None

    def sample_torch(self, parameters: Tensor, noise: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        """[...] actions made of random numbers `noise` [..., K] on the device: distributed as those that `sample` draws."""
        raise ConfigError(f"{type(self).__name__} draws no actions on a device; leave the environment on the CPU")

    @abstractmethod
    def mode(self, parameters: Array) -> Array:
        """The most likely action."""

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        """The same in torch, for export; `constants` are `scales` and `bounds`."""
        raise ConfigError(f"{type(self).__name__} has no mode_torch(), which export needs")

    # What critics see of actions, and how policies are differentiated through them: learning from replay.

    @property
    def critic_width(self) -> int:
        """Numbers of an action as critics see it."""
        raise self._not_from_replay()

    def encode_action(self, action: Array) -> Array:
        """[..., critic_width] a stored action as critics see it."""
        raise self._not_from_replay()

    def encode_action_torch(self, action: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        """The same of actions on a device; `constants` are `scales`."""
        raise self._not_from_replay()

    def draw_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        """The random numbers [M, …] of `rsample`."""
        raise self._not_from_replay()

    def draw_noise_torch(self, num_rows: int, generator: Generator) -> Tensor:
        """The same, drawn on a generator's device."""
        raise self._not_from_replay()

    def rsample(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """[M, critic_width] actions as critics see them and [M] their log-probabilities, differentiable by `parameters`."""
        raise self._not_from_replay()

    def _not_from_replay(self) -> ConfigError:
        return ConfigError(
            f"learning from replay is not possible in action space {self.space}; use ppo, reinforce, impala or appo"
        )

    def uniform_log_prob(self, action: Array, mask: Array | None) -> Array | None:
        """[L] log-probabilities of what `sample_uniform` drew; None where the head has none."""
        indifferent = np.zeros((len(action), self.num_outputs), np.float32)
        return self.log_prob_numpy(self.parameters_numpy(indifferent, mask), action) if self.has_log_prob else None

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """[…] log density of `action`, to be differentiated; `ConfigError` where the head has none."""
        raise ConfigError(f"{type(self).__name__} gives no likelihoods, which cloning needs; use ppo, poca or sac")

    def entropy(self, parameters: Tensor) -> Tensor:
        """[…] entropy in nats; `ConfigError` where the head has none."""
        raise ConfigError(f"{type(self).__name__} has no entropy; use ppo, poca or sac")

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array | None:
        """[…] log density of `action` [..., *action shape]; None where the head gives none."""
        del parameters, action
        return None

    def describe(self) -> HeadDescription | None:
        """What the accelerator must know; None where it has nothing for this head."""
        return None

    def to_environment(self, action: Array) -> Array:
        """The action as the environment takes it."""
        return action


class LikelihoodHead(ActionHead):
    """A distribution whose log-probabilities on-policy algorithms differentiate."""

    has_log_prob = True

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
