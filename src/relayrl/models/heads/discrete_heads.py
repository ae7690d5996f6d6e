"""Heads of Discrete, MultiDiscrete and MultiBinary action spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import Distribution, HeadDescription, LikelihoodHead, NoiseKind

if TYPE_CHECKING:
    from torch import Generator, Tensor

MASKED_LOGIT = -1e9
"""Logit of a forbidden action: finite, so that `0 * log 0` never becomes NaN in gradients; its probability is exactly 0."""
GUMBEL_TEMPERATURE = 1.0
"""Of the relaxed choices by which policies are differentiated through critics."""


class OneHotHead(LikelihoodHead):
    """Choices that critics see as one-hot vectors, side by side where there are several.

    Gradients pass a drawn one-hot by the straight-through Gumbel-softmax (Jang et al., 2017): the forward pass sees the choice,
    the backward pass the softmax. Its log-probability is the expectation, −H(π): less variance and the same meaning.
    """

    slices: Sequence[slice]
    """Where each choice's log-probabilities lie."""
    starts: tuple[int, ...]
    """The first action of each choice."""

    @property
    def critic_width(self) -> int:
        return self.num_outputs

    def encode_action_torch(self, action: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        import torch

        choices = action[..., None] if len(self.starts) == 1 else action
        numbers = enumerate(zip(self.starts, self.part_sizes, strict=True))
        hot = [torch.nn.functional.one_hot(choices[..., i] - start, size) for i, (start, size) in numbers]
        return torch.cat(hot, -1).to(torch.float32)

    def draw_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        return rng.random((num_rows, self.num_outputs), dtype=np.float32)

    def draw_noise_torch(self, num_rows: int, generator: Generator) -> Tensor:
        import torch

        return torch.rand((num_rows, self.num_outputs), generator=generator, device=generator.device)

    def rsample(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        gumbel = -(-noise.clamp(min=1e-10).log()).log()
        noisy = (parameters + gumbel) / GUMBEL_TEMPERATURE
        parts = []
        for where in self.slices:
            soft = noisy[..., where].softmax(-1)
            hot = torch.nn.functional.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
            parts.append(hot + soft - soft.detach())
        return torch.cat(parts, -1), -self.entropy(parameters)


class CategoricalHead(OneHotHead):
    """One choice among `n`."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.space = space
        self.slices, self.part_sizes, self.starts = [slice(0, int(space.n))], (int(space.n),), (int(space.start),)
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

    @property
    def noise(self) -> tuple[NoiseKind, int]:
        return NoiseKind.UNIFORM, 1

    def sample_torch(self, parameters: Tensor, noise: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        cumulative = parameters.exp().cumsum(-1)
        draw = 1.0 - noise  # from (0, 1], as in `sample`
        choice = (cumulative < draw * cumulative[..., -1:]).sum(-1)
        return choice + self.start if self.start else choice

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        rows, choice = parameters.reshape(-1, self.num_outputs), (action - self.start).reshape(-1)
        return np.asarray(rows[np.arange(len(rows)), choice].reshape(parameters.shape[:-1]))

    def entropy_numpy(self, parameters: Array) -> Array:
        return np.asarray(-(np.exp(parameters) * parameters).sum(-1))

    def mode(self, parameters: Array) -> Array:
        return np.asarray(parameters.argmax(-1) + self.start)

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        return parameters.argmax(-1) + self.start

    def encode_action(self, action: Array) -> Array:
        return one_hot(action - self.start, self.num_outputs)

    def describe(self) -> HeadDescription:
        return HeadDescription(Distribution.CHOICE, self.part_sizes, self.starts)


class MultiCategoricalHead(OneHotHead):
    """Several independent choices."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self.space = space
        if space.nvec.ndim != 1:
            raise ConfigError(f"action space {space}: only one-dimensional MultiDiscrete spaces are supported")
        self.parts = [
            CategoricalHead(spaces.Discrete(int(n), start=int(start)))
            for n, start in zip(space.nvec, space.start, strict=True)
        ]
        self.num_outputs = self.num_parameters = self.mask_width = int(space.nvec.sum())
        ends = np.cumsum(space.nvec)
        self.slices = [slice(int(end - n), int(end)) for n, end in zip(space.nvec, ends, strict=True)]
        self.part_sizes = tuple(part.num_outputs for part in self.parts)
        self.starts = tuple(part.start for part in self.parts)

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

    @property
    def noise(self) -> tuple[NoiseKind, int]:
        return NoiseKind.UNIFORM, len(self.parts)

    def sample_torch(self, parameters: Tensor, noise: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        import torch

        parts = enumerate(zip(self.parts, self.slices, strict=True))
        drawn = [part.sample_torch(parameters[..., at], noise[..., i : i + 1], constants) for i, (part, at) in parts]
        return torch.stack(drawn, -1)

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        parts = zip(self.parts, self.slices, strict=True)
        each = [part.log_prob_numpy(parameters[..., where], action[..., i]) for i, (part, where) in enumerate(parts)]
        return np.asarray(sum(each))

    def entropy_numpy(self, parameters: Array) -> Array:
        return np.asarray(-(np.exp(parameters) * parameters).sum(-1))

    def mode(self, parameters: Array) -> Array:
        return np.stack(
            [part.mode(parameters[..., where]) for part, where in zip(self.parts, self.slices, strict=True)], -1
        )

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        import torch

        parts = zip(self.parts, self.slices, strict=True)
        return torch.stack([part.mode_torch(parameters[..., where], constants) for part, where in parts], -1)

    def encode_action(self, action: Array) -> Array:
        return np.concatenate([part.encode_action(action[..., i]) for i, part in enumerate(self.parts)], -1)

    def describe(self) -> HeadDescription:
        return HeadDescription(Distribution.CHOICES, self.part_sizes, self.starts)


class BernoulliHead(LikelihoodHead):
    """Independent bits."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        self.space = space
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

    def mode(self, parameters: Array) -> Array:
        return np.asarray((parameters > 0).astype(np.int8))

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        import torch

        return (parameters > 0).to(torch.int8)

    def describe(self) -> HeadDescription:
        return HeadDescription(Distribution.BITS)


def log_softmax(logits: Array) -> Array:
    """Log of the softmax over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def one_hot(index: Array, width: int) -> Array:
    """[..., width] ones where `index` points."""
    return np.asarray(index[..., None] == np.arange(width), np.float32)
