"""Heads of Box action spaces: normal, squashed normal, and deterministic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import (
    ActionHead,
    Distribution,
    HeadDescription,
    HeadKind,
    LikelihoodHead,
    NoiseKind,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

LOG_2PI = math.log(2.0 * math.pi)
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of a squashed normal's log deviation (Haarnoja et al., 2018)."""
LARGEST_SQUASHED = 0.999


class BoxHead(ActionHead):
    """What distributions over a box share: its bounds, and the scale that is 1 in the middle of the networks."""

    def __init__(self, space: spaces.Box) -> None:
        if len(space.shape) != 1:
            raise ConfigError(f"action space {space}: a plain head has one axis; ask the head registry for others")
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(f"action space {space}: a Box action space must be of a floating dtype")
        self.space = space
        self.num_actions = int(space.shape[0])
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        self.is_bounded = bool(bounded.all())
        self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
        self._lowest, self._highest = _one_for_all(self.low), _one_for_all(self.high)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
        self.center = ((low + high) / 2.0).astype(np.float32)
        # A dimension without a range has one action, which clipping to the bounds gives; its scale only must not be 0.
        self.half_range = np.where(high > low, (high - low) / 2.0, 1.0).astype(np.float32)

    @property
    def scales(self) -> dict[str, Array]:
        return {"action_scale": self.half_range, "action_center": self.center}

    @property
    def bounds(self) -> dict[str, Array]:
        return {"low": self.low, "high": self.high}

    def to_environment(self, action: Array) -> Array:
        return np.asarray(self._within_bounds(action), dtype=self.space.dtype)

    def sample_uniform(self, num_rows: int, mask: Array | None, rng: np.random.Generator) -> Array:
        if not self.is_bounded:  # no uniform distribution: what is natural in the units of the networks
            noise = rng.standard_normal((num_rows, self.num_actions), dtype=np.float32)
            return self._within_bounds(self.center + self.half_range * noise)
        return rng.uniform(self.low, self.high, (num_rows, self.num_actions)).astype(np.float32)

    def uniform_log_prob(self, action: Array, mask: Array | None) -> Array | None:
        density = -float(np.log(self.high - self.low).sum()) if self.is_bounded else math.nan
        return np.full(len(action), density, np.float32) if self.has_log_prob else None

    @property
    def noise(self) -> tuple[NoiseKind, int]:
        return NoiseKind.NORMAL, self.num_actions

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        return parameters[..., : self.num_actions].maximum(constants["low"]).minimum(constants["high"])

    def encode_action(self, action: Array) -> Array:
        return np.asarray((action - self.center) / self.half_range, np.float32)

    def encode_action_torch(self, action: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        return (action - constants["action_center"]) / constants["action_scale"]

    def _within_bounds(self, action: Array) -> Array:
        return np.asarray(
            np.minimum(np.maximum(action, self._lowest), self._highest)
        )  # np.clip costs three times as much


def _one_for_all(bounds: Array) -> Any:
    """A bound that is the same in all dimensions as one number, with which NumPy is several times faster."""
    return bounds[0] if bounds.size and (bounds == bounds[0]).all() else bounds


def _normal_entropy(parameters: Any, num_actions: int) -> Any:
    """[…] of means and log deviations side by side."""
    return parameters[..., num_actions:].sum(-1) + 0.5 * (1.0 + LOG_2PI) * num_actions


class GaussianHead(BoxHead, LikelihoodHead):
    """Independent normal distributions: a network gives the means, the policy has one deviation for all observations."""

    learns_log_std = True

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        self.num_outputs = self.num_parameters = 2 * self.num_actions

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return outputs

    @property
    def num_network_outputs(self) -> int:
        return self.num_actions

    def scaled(self, outputs: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        import torch

        scale = constants["action_scale"]
        mean = outputs * scale + constants["action_center"]
        return torch.cat([mean, (constants["log_std"] + scale.log()).expand_as(mean)], -1)

    def describe(self) -> HeadDescription:
        return HeadDescription(Distribution.NORMAL, scales=self.scales)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        log_prob: Tensor = self._log_prob(parameters, action, lambda x: x.exp())
        return log_prob

    def log_prob_numpy(self, parameters: Array, action: Array) -> Array:
        return np.asarray(self._log_prob(parameters, action, np.exp))

    def _log_prob(self, parameters: Any, action: Any, exp: Callable[[Any], Any]) -> Any:
        mean, log_std = parameters[..., : self.num_actions], parameters[..., self.num_actions :]
        z = (action - mean) * exp(-log_std)
        return (-0.5 * z * z - log_std).sum(-1) - 0.5 * LOG_2PI * self.num_actions

    def entropy(self, parameters: Tensor) -> Tensor:
        entropy: Tensor = _normal_entropy(parameters, self.num_actions)
        return entropy

    def entropy_numpy(self, parameters: Array) -> Array:
        return np.asarray(_normal_entropy(parameters, self.num_actions))

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        mean, log_std = np.split(parameters, 2, -1)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return np.asarray(mean + np.exp(log_std) * noise)

    def sample_torch(self, parameters: Tensor, noise: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, parameters: Array) -> Array:
        return self.to_environment(parameters[..., : self.num_actions])


class SquashedGaussianHead(BoxHead):
    """SAC's: a normal distribution sent through tanh onto the bounds. The parameters are those before the tanh."""

    kind = HeadKind.SQUASHED

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        _require_bounds(self, "SAC")
        self.num_outputs = self.num_parameters = 2 * self.num_actions

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        import torch

        mean, log_std = outputs.chunk(2, -1)
        return torch.cat([mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)], -1)

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        parameters = outputs.copy()
        log_std = parameters[..., self.num_actions :]
        np.minimum(np.maximum(log_std, np.float32(LOG_STD_MIN)), np.float32(LOG_STD_MAX), out=log_std)
        return parameters

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        mean, log_std = parameters[..., : self.num_actions], parameters[..., self.num_actions :]
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return self._squashed(mean + np.exp(log_std) * noise)

    def sample_torch(self, parameters: Tensor, noise: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        return self.rsample(parameters, noise)[0] * constants["action_scale"] + constants["action_center"]

    def mode(self, parameters: Array) -> Array:
        return self.to_environment(self._squashed(parameters[..., : self.num_actions]))

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        mean = parameters[..., : self.num_actions].tanh() * constants["action_scale"] + constants["action_center"]
        return super().mode_torch(mean, constants)

    @property
    def critic_width(self) -> int:
        return self.num_actions

    def draw_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((num_rows, self.num_actions), dtype=np.float32)

    def draw_noise_torch(self, num_rows: int, generator: Generator) -> Tensor:
        import torch

        return torch.randn((num_rows, self.num_actions), generator=generator, device=generator.device)

    def rsample(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """a = tanh(u), u = μ + σ ε."""
        mean, log_std = parameters.chunk(2, -1)
        u = mean + log_std.exp() * noise
        return u.tanh(), self._log_prob(u, noise, log_std)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Of demonstrated actions, in units of half the range. The bounds themselves have no u = artanh(a): actions count as at
        most `LARGEST_SQUASHED` of the way to them."""
        center, scale = (parameters.new_tensor(numbers) for numbers in (self.center, self.half_range))
        u = ((action - center) / scale).clamp(-LARGEST_SQUASHED, LARGEST_SQUASHED).atanh()
        mean, log_std = parameters.chunk(2, -1)
        return self._log_prob(u, (u - mean) * (-log_std).exp(), log_std)

    @staticmethod
    def _log_prob(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
        """log π(a) = log N(u) − Σ log(1 − a²), which is 2 (log 2 − u − softplus(−2u))."""
        log_slope = 2.0 * (math.log(2.0) - u - (-2.0 * u).logaddexp(u.new_zeros(())))
        logp: Tensor = -0.5 * noise.square() - log_std - 0.5 * LOG_2PI - log_slope
        return logp.sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Of the normal distribution before the tanh."""
        entropy: Tensor = _normal_entropy(parameters, self.num_actions)
        return entropy

    def describe(self) -> HeadDescription:
        return HeadDescription(Distribution.SQUASHED_NORMAL, scales=self.scales)

    def _squashed(self, x: Array) -> Array:
        return np.asarray(np.tanh(x) * self.half_range + self.center)


class DeterministicHead(BoxHead):
    """DDPG's and TD3's: the action itself; drawing one adds normal noise in units of half the range, within the bounds."""

    kind = HeadKind.DETERMINISTIC

    def __init__(self, space: spaces.Box, noise_scale: float = 0.0) -> None:
        super().__init__(space)
        _require_bounds(self, "a deterministic policy")
        self.noise_scale = noise_scale
        self.num_outputs = self.num_parameters = self.num_actions

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return outputs

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        return np.asarray(np.tanh(outputs) * self.half_range + self.center)

    def sample(self, parameters: Array, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal(parameters.shape, dtype=np.float32) * self.half_range
        return self._within_bounds(parameters + np.float32(self.noise_scale) * noise)

    def sample_torch(self, parameters: Tensor, noise: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        scale, center = constants["action_scale"], constants["action_center"]
        return (parameters + self.noise_scale * noise * scale).maximum(center - scale).minimum(center + scale)

    def mode(self, parameters: Array) -> Array:
        return self.to_environment(parameters)

    def scaled(self, outputs: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        return outputs.tanh() * constants["action_scale"] + constants["action_center"]

    @property
    def critic_width(self) -> int:
        return self.num_actions

    def draw_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        return np.empty((num_rows, 0), np.float32)

    def draw_noise_torch(self, num_rows: int, generator: Generator) -> Tensor:
        import torch

        return torch.empty((num_rows, 0), device=generator.device)

    def rsample(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action itself, which has no log-probability."""
        center, scale = (_filled(numbers, parameters) for numbers in (self.center, self.half_range))
        return (parameters - center) / scale, parameters.new_zeros(parameters.shape[:-1])

    def describe(self) -> HeadDescription:
        return HeadDescription(Distribution.POINT, scales=self.scales)


def _filled(numbers: Array, like: Tensor) -> Tensor:
    """Numbers beside `like`; filled there, since a copy from the host cannot be captured in a CUDA graph."""
    import torch

    return torch.stack([like.new_full((), float(number)) for number in numbers])


def _require_bounds(head: BoxHead, what: str) -> None:
    if not head.is_bounded:
        raise ConfigError(
            f"action space {head.space}: {what} needs finite bounds; ppo, reinforce, impala and appo do not"
        )
