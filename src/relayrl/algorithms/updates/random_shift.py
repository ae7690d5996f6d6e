"""Data augmentation of images in replay: each is shifted by a few pixels at random (Kostrikov et al., 2021, DrQ).

An image is continued by its border pixels and cut out again somewhere else. Observations and what followed them are shifted
apart from each other, and all frames of a stack alike. The pixels stay what they are: nothing is interpolated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.trees import Array, Space, leaves, unflatten
from relayrl.models.networks.image_layout import ImageLayout
from relayrl.models.policy import Policy


class RandomShift:
    """Shifts the images of observations by up to `num_pixels` in each direction."""

    def __init__(self, space: Space, layouts: list[ImageLayout | None], num_pixels: int) -> None:
        """`layouts` of the space's leaves; those without one stay as they are."""
        self._space, self._layouts, self._num_pixels = space, layouts, num_pixels

    @classmethod
    def of(cls, policy: Policy, num_pixels: int) -> RandomShift | None:
        """One for a policy's observations; None where nothing is to be shifted."""
        if not num_pixels:
            return None
        layouts = [encoding.image_layout(policy.network.image_layout) for encoding in policy.encoder.encodings]
        has_images = any(layout is not None for layout in layouts)
        return cls(policy.observation_space, layouts, num_pixels) if has_images else None

    def __call__(self, obs: Any, rng: np.random.Generator) -> Any:
        """Observations [M, N, …], each shifted by itself."""
        parts = zip(leaves(obs), self._layouts, strict=True)
        return unflatten(
            self._space,
            iter([leaf if layout is None else self._shifted(leaf, layout, rng) for (_, leaf), layout in parts]),
        )

    def _shifted(self, leaf: Array, layout: ImageLayout, rng: np.random.Generator) -> Array:
        images = leaf.reshape(-1, *layout.shape)
        height_axis = 1 + layout.height_axis
        height, width = images.shape[height_axis : height_axis + 2]
        border = [(0, 0)] * images.ndim
        border[height_axis] = border[height_axis + 1] = (self._num_pixels, self._num_pixels)
        padded, shifted = np.pad(images, border, mode="edge"), np.empty_like(images)
        before = (slice(None),) * (height_axis - 1)
        corners = rng.integers(2 * self._num_pixels + 1, size=(len(images), 2)).tolist()
        for image, whole, (top, left) in zip(shifted, padded, corners, strict=True):
            image[...] = whole[(*before, slice(top, top + height), slice(left, left + width))]
        return shifted.reshape(leaf.shape)
