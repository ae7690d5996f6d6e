"""Action distributions: what a policy's output vector means, once in torch (learning) and once in NumPy (acting).

A head belongs to an action space. The network gives it `num_outputs` raw numbers; `parameters` turns them into the
distribution's parameters `[…, P]` (the only thing an exported graph must output), of which `log_prob` and `entropy` learn
in torch, and `sample` and `mode` act in NumPy. The parameters are in the units of the environment:

    Discrete        log-probabilities, masked ones at MASKED_LOGIT before the softmax
    MultiDiscrete   the components' log-probabilities side by side
    MultiBinary     logits of the ones
    Box             mean and log standard deviation side by side; actions are clipped to the bounds only on their way into
                    the environment (`to_environment`), so that a stored action has the probability it was drawn with

torch is not imported: tensors come in, and their own methods are called, so an actor without torch can use this file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

MASKED_LOGIT = -1e9
"""Logit of a forbidden action: finite, so that `0 * log 0` never becomes NaN in gradients; its probability is exactly 0."""

LOG_2PI = math.log(2.0 * math.pi)


class ActionHead(ABC):
    """The distribution over one action space."""

    num_outputs: int
    num_parameters: int
    mask_width: int | None = None

    @abstractmethod
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """[…] log density of `action` [..., *action shape]."""

    @abstractmethod
    def entropy(self, parameters: Tensor) -> Tensor:
        """[…] entropy in nats."""

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
    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        """[…] the same as `log_prob`, in NumPy."""

    @abstractmethod
    def entropy_numpy(self, parameters: Array) -> Array:
        """[…] the same as `entropy`, in NumPy."""

    @abstractmethod
    def parameter_gradient(self, parameters: Array, action: Array, by_logp: Array, by_entropy: float) -> Array:
        """[M, O] derivative of a loss by what `parameters` was computed from: the raw outputs, for a box the parameters.

        `by_logp` [M] is the loss's derivative by each row's log-probability, `by_entropy` that by each row's entropy.
        """

    @abstractmethod
    def mode(self, parameters: Array) -> Array:
        """The most likely action."""

    def to_environment(self, action: Array) -> Array:
        """The action as the environment takes it."""
        return action


class CategoricalHead(ActionHead):
    """One choice among `n`."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_outputs = self.num_parameters = self.mask_width = int(space.n)
        self.start = int(space.start)

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            outputs = outputs.masked_fill(~mask, MASKED_LOGIT)
        return outputs.log_softmax(-1)

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        if mask is not None:
            outputs = np.where(mask, outputs, np.float32(MASKED_LOGIT))
        return log_softmax(outputs)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return parameters.gather(-1, (action - self.start).unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        return -(parameters.exp() * parameters).sum(-1)

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        cumulative = np.exp(parameters).cumsum(-1)
        # A draw from (0, total], compared strictly: neither rounding nor a draw of zero can pick a masked action.
        draw = 1.0 - rng.random(parameters.shape[:-1], dtype=np.float32)
        choice = (cumulative < draw[..., None] * cumulative[..., -1:]).sum(-1)
        return np.asarray(choice + self.start if self.start else choice)

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        return np.asarray(np.take_along_axis(parameters, (action - self.start)[..., None], -1)[..., 0])

    def entropy_numpy(self, parameters: Array) -> Array:
        return np.asarray(-(np.exp(parameters) * parameters).sum(-1))

    def parameter_gradient(self, parameters: Array, action: Array, by_logp: Array, by_entropy: float) -> Array:
        # ∂ log p_a / ∂z = 1_a − p;   ∂H / ∂z = −p (log p + H)
        p = np.exp(parameters)
        gradient = p * -by_logp[:, None]
        gradient[np.arange(len(action)), action - self.start] += by_logp
        if by_entropy:
            entropy = -(p * parameters).sum(-1, keepdims=True)
            gradient -= by_entropy * p * (parameters + entropy)
        return gradient

    def mode(self, parameters: Array) -> Array:
        return np.asarray(parameters.argmax(-1) + self.start)


class MultiCategoricalHead(ActionHead):
    """Several independent choices."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        if space.nvec.ndim != 1:
            raise ConfigError(f"action space {space}: only one-dimensional MultiDiscrete spaces are supported")
        self.parts = [
            CategoricalHead(spaces.Discrete(int(n), start=int(start)))
            for n, start in zip(space.nvec, space.start, strict=True)
        ]
        self.num_outputs = self.num_parameters = self.mask_width = int(space.nvec.sum())
        ends = np.cumsum(space.nvec)
        self.slices = [slice(int(end - n), int(end)) for n, end in zip(space.nvec, ends, strict=True)]

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        import torch

        if mask is not None:
            outputs = outputs.masked_fill(~mask, MASKED_LOGIT)
        return torch.cat([outputs[..., where].log_softmax(-1) for where in self.slices], -1)

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        if mask is not None:
            outputs = np.where(mask, outputs, np.float32(MASKED_LOGIT))
        return np.concatenate([log_softmax(outputs[..., where]) for where in self.slices], -1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        parts = zip(self.parts, self.slices, strict=True)
        total = parameters.new_zeros(parameters.shape[:-1])
        for i, (part, where) in enumerate(parts):
            total = total + part.log_prob(parameters[..., where], action[..., i])
        return total

    def entropy(self, parameters: Tensor) -> Tensor:
        return -(parameters.exp() * parameters).sum(-1)

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        drawn = [part.sample(parameters[..., where], rng) for part, where in zip(self.parts, self.slices, strict=True)]
        return np.stack(drawn, -1)

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        parts = zip(self.parts, self.slices, strict=True)
        each = [part.log_prob_numpy(parameters[..., where], action[..., i]) for i, (part, where) in enumerate(parts)]
        return np.asarray(sum(each))

    def entropy_numpy(self, parameters: Array) -> Array:
        return np.asarray(-(np.exp(parameters) * parameters).sum(-1))

    def parameter_gradient(self, parameters: Array, action: Array, by_logp: Array, by_entropy: float) -> Array:
        parts = enumerate(zip(self.parts, self.slices, strict=True))
        return np.concatenate(
            [p.parameter_gradient(parameters[:, w], action[:, i], by_logp, by_entropy) for i, (p, w) in parts], -1
        )

    def mode(self, parameters: Array) -> Array:
        return np.stack(
            [part.mode(parameters[..., where]) for part, where in zip(self.parts, self.slices, strict=True)], -1
        )


class BernoulliHead(ActionHead):
    """Independent bits."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        if len(space.shape) != 1:
            raise ConfigError(f"action space {space}: only one-dimensional MultiBinary spaces are supported")
        self.num_outputs = self.num_parameters = int(space.shape[0])

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return outputs

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        # log σ(x) for a one, log σ(−x) for a zero.
        sign = action.to(parameters.dtype) * 2.0 - 1.0
        return -(-parameters * sign).logaddexp(parameters.new_zeros(())).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        zero = parameters.new_zeros(())
        return ((-parameters).logaddexp(zero) + (1.0 - parameters.sigmoid()) * parameters).sum(-1)

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        ones = rng.random(parameters.shape, dtype=np.float32) < 1.0 / (1.0 + np.exp(-parameters))
        return np.asarray(ones.astype(np.int8))

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        return np.asarray(-np.logaddexp(0.0, -parameters * (action * 2.0 - 1.0)).sum(-1))

    def entropy_numpy(self, parameters: Array) -> Array:
        p = 1.0 / (1.0 + np.exp(-parameters))
        return np.asarray((np.logaddexp(0.0, -parameters) + (1.0 - p) * parameters).sum(-1))

    def parameter_gradient(self, parameters: Array, action: Array, by_logp: Array, by_entropy: float) -> Array:
        # ∂ log p / ∂x = a − σ(x);   ∂H / ∂x = −x σ(x) (1 − σ(x))
        p = 1.0 / (1.0 + np.exp(-parameters))
        return np.asarray((action - p) * by_logp[:, None] - by_entropy * parameters * p * (1.0 - p), np.float32)

    def mode(self, parameters: Array) -> Array:
        return np.asarray((parameters > 0).astype(np.int8))


class GaussianHead(ActionHead):
    """Independent normal distributions. The policy scales mean and deviation to the space before they come here."""

    def __init__(self, space: spaces.Box) -> None:
        if len(space.shape) != 1:
            raise ConfigError(f"action space {space}: only one-dimensional Box spaces are supported")
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(f"action space {space}: a Box action space must be of a floating dtype")
        self.num_actions = int(space.shape[0])
        self.num_outputs = self.num_parameters = 2 * self.num_actions
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
        self.center, self.half_range = ((low + high) / 2.0).astype(np.float32), ((high - low) / 2.0).astype(np.float32)
        self._dtype = space.dtype

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return outputs

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        z = (action - mean) * (-log_std).exp()
        return (-0.5 * z * z - log_std).sum(-1) - 0.5 * LOG_2PI * self.num_actions

    def entropy(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[1].sum(-1) + 0.5 * (1.0 + LOG_2PI) * self.num_actions

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        mean, log_std = np.split(parameters, 2, -1)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return np.asarray(mean + np.exp(log_std) * noise)

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        mean, log_std = np.split(parameters, 2, -1)
        z = (action - mean) * np.exp(-log_std)
        return np.asarray((-0.5 * z * z - log_std).sum(-1) - np.float32(0.5 * LOG_2PI * self.num_actions))

    def entropy_numpy(self, parameters: Array) -> Array:
        log_std = parameters[..., self.num_actions :]
        return np.asarray(log_std.sum(-1) + np.float32(0.5 * (1.0 + LOG_2PI) * self.num_actions))

    def parameter_gradient(self, parameters: Array, action: Array, by_logp: Array, by_entropy: float) -> Array:
        # With z = (a − μ) / σ:  ∂ log p / ∂μ = z / σ;   ∂ log p / ∂ log σ = z² − 1;   ∂H / ∂ log σ = 1
        mean, log_std = np.split(parameters, 2, -1)
        inverse_std = np.exp(-log_std)
        z = (action - mean) * inverse_std
        by_mean, by_log_std = z * inverse_std * by_logp[:, None], (z * z - 1.0) * by_logp[:, None] + by_entropy
        return np.concatenate([by_mean, by_log_std], -1)

    def mode(self, parameters: Array) -> Array:
        return self.to_environment(parameters[..., : self.num_actions])

    def to_environment(self, action: Array) -> Array:
        return np.asarray(np.clip(action, self.low, self.high), dtype=self._dtype)


def log_softmax(logits: Array) -> Array:
    """Log of the softmax over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def action_head(space: Space) -> ActionHead:
    """The head of an action space."""
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    if isinstance(space, spaces.Box):
        return GaussianHead(space)
    raise ConfigError(f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary or Box")
