"""Building blocks around the networks: encoding of observations and running normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from relayrl.data.trees import Array, Space, leaves, space_leaves
from relayrl.errors import ConfigError
from relayrl.models.network_settings import ImageAxes
from relayrl.models.networks.image_layout import ImageLayout, image_layout
from relayrl.models.networks.one_thread import one_thread
from relayrl.models.normalization import Normalization

DESIRED_GOAL, GOAL_SIGNAL = "desired_goal", "goal_signal"
"""Names of goals in observations: that of Gymnasium's goal environments, and the beginning of those of Unity's goal sensors."""


class LeafEncoding:
    """How one leaf of an observation becomes numbers: `width` features, one-hot where the leaf is categorical."""

    def __init__(self, space: Space, path: str = "") -> None:
        """`path` is where the leaf lies in the observation."""
        name = path.rpartition(".")[2]
        self.is_goal = name == DESIRED_GOAL or name.startswith(GOAL_SIGNAL)
        self.shape = tuple(space.shape or ())
        self.num_axes = len(self.shape)
        self.categories: Array | None = None
        if isinstance(space, spaces.Discrete):
            self.categories, self.start = np.array([space.n]), np.array([space.start])
        elif isinstance(space, spaces.MultiDiscrete):
            self.categories, self.start = space.nvec.reshape(-1), space.start.reshape(-1)
        elif not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ConfigError(
                f"observation space {space} is not supported; use Box, Discrete, MultiDiscrete, MultiBinary"
            )
        self.has_pixels = isinstance(space, spaces.Box) and space.dtype == np.uint8
        self.is_continuous = isinstance(space, spaces.Box) and not self.has_pixels
        # Real numbers in two axes may be anything, such as a history of vectors.
        self.may_be_image = self.has_pixels or (self.is_continuous and self.num_axes > 2)
        self.divisor = _image_maximum(space) if isinstance(space, spaces.Box) and self.may_be_image else 1.0
        self.width = int(np.prod(space.shape or (1,))) if self.categories is None else int(self.categories.sum())
        if self.categories is not None:
            self.offset = np.concatenate([[0], np.cumsum(self.categories)[:-1]]) - self.start

    def image_layout(self, axes: ImageAxes = ImageAxes.AUTO) -> ImageLayout | None:
        """The layout of an image worth convolving; raises `ConfigError` for an ambiguous one."""
        return image_layout(self.shape, axes) if self.may_be_image else None

    def scaled(self, numbers: Tensor) -> Tensor:
        """Numbers of the leaf as float32; those of images in [0, 1]."""
        scaled = numbers.to(torch.float32)
        if self.divisor == 1.0:
            return scaled
        # Bytes have just been copied: no second copy, which takes longer to allocate than to fill.
        return scaled / self.divisor if scaled is numbers else scaled.div_(self.divisor)


def _image_maximum(space: spaces.Box) -> float:
    """What brings an image's numbers into [0, 1]: 255 for bytes, the bound of real numbers that have one."""
    if space.dtype == np.uint8:
        return 255.0
    low, high = float(space.low.min()), float(space.high.max())
    return high if low >= 0.0 and 1.0 < high < math.inf else 1.0


class ObservationEncoder(nn.Module):
    """A tree of observations as one float32 feature vector; images are divided by their largest number."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.encodings = [LeafEncoding(leaf, path) for path, leaf in space_leaves(space)]
        self.num_features = sum(encoding.width for encoding in self.encodings)

    def forward(self, obs: Any) -> Tensor:
        parts = [self.encode_leaf(leaf, e) for (_, leaf), e in zip(leaves(obs), self.encodings, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    @staticmethod
    def encode_leaf(leaf: Tensor, encoding: LeafEncoding) -> Tensor:
        """[..., width] the features of one leaf."""
        rows = leaf.unsqueeze(-1) if encoding.num_axes == 0 else leaf.flatten(leaf.ndim - encoding.num_axes)
        if encoding.categories is None:
            return encoding.scaled(rows)
        parts = [
            nn.functional.one_hot(rows[..., i] - int(start), int(n))
            for i, (n, start) in enumerate(zip(encoding.categories, encoding.start, strict=True))
        ]
        return torch.cat(parts, -1).to(torch.float32)

    def encode_numpy(self, obs: Any) -> Array:
        """The same features for a NumPy tree with one leading axis."""
        if isinstance(obs, np.ndarray) and self.encodings[0].is_continuous and self.encodings[0].num_axes == 1:
            return obs if obs.dtype == np.float32 else obs.astype(np.float32)
        features = [self._encode_numpy(leaf, e) for (_, leaf), e in zip(leaves(obs), self.encodings, strict=True)]
        return features[0] if len(features) == 1 else np.concatenate(features, -1)

    @staticmethod
    def _encode_numpy(leaf: Array, encoding: LeafEncoding) -> Array:
        rows = len(leaf)
        if encoding.categories is None:
            flat = leaf.reshape(rows, -1).astype(np.float32)
            return flat if encoding.divisor == 1.0 else flat / np.float32(encoding.divisor)
        hot = np.zeros((rows, encoding.width), np.float32)
        hot[np.arange(rows)[:, None], leaf.reshape(rows, -1) + encoding.offset] = 1.0
        return hot


class RunningNormalizer(nn.Module):
    """Running mean and variance of features, applied as `(x − mean) / std`; starts as the identity.

    Kept in float64 and merged batch by batch (Chan et al., 1979), so that a long run does not drift.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor
    _adapts: Tensor

    def __init__(self, width: int, adapts: Array | None = None, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        mask = torch.from_numpy(np.ones(width, bool) if adapts is None else adapts)
        self.register_buffer("_adapts", mask, persistent=False)

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Merge rows `[M, F]` into the statistics."""
        if not len(batch):
            return
        rows = batch.to(torch.float64)
        with one_thread():
            mean, variance = rows.mean(0), rows.var(0, unbiased=False)
        self.merge(mean, variance, len(rows))

    @torch.no_grad()
    def merge(self, mean: Tensor, variance: Tensor, num_rows: int) -> None:
        """Merge rows of which these are the moments `[F]`."""
        n = float(num_rows)
        total = self.count + n
        delta = mean - self.mean
        merged = (self.variance * self.count + variance * n + delta**2 * self.count * n / total) / total
        self.mean += delta * n / total
        self.variance.copy_(merged)
        self.count.copy_(total)
        self.shift.copy_(torch.where(self._adapts, self.mean, 0.0))
        self.scale.copy_(torch.where(self._adapts, (self.variance + 1e-8).rsqrt(), 1.0))

    def on_host(self) -> Normalization:
        """The same in NumPy; on the CPU with views of the live moments."""
        return Normalization(self.shift.cpu().numpy(), self.scale.cpu().numpy(), self.clip)

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.shift) * self.scale).clamp(-self.clip, self.clip)
