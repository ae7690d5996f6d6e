"""Which axes of an observation are an image's height, width and channels.

Height and width are two neighbouring axes, both at least `MIN_IMAGE_SIDE` and larger than every other axis; all others are
channels. So channels first and last, and stacks of frames in front or behind, are recognised without a setting:

    (84, 84)  (84, 84, 3)  (3, 84, 84)  (12, 84, 84)  (4, 84, 84, 3)  (4, 3, 84, 84)

`network.image_layout` says it instead for images that are smaller, or whose axes are of other sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from relayrl.errors import ConfigError
from relayrl.models.network_settings import ImageAxes

MIN_IMAGE_SIDE = 16
"""Images with a shorter side are convolved only where the layout is set."""
MIN_CONVOLVED_SIDE = 5
"""What the smallest convolutions leave something of."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where height and width lie in `shape`, and how the rest folds into channels."""

    shape: tuple[int, ...]
    height_axis: int

    @property
    def channels_first(self) -> tuple[int, int, int]:
        """[C, H, W] with all other axes folded into C."""
        height, width = self.shape[self.height_axis : self.height_axis + 2]
        return math.prod(self.shape) // (height * width), height, width

    @property
    def axes(self) -> tuple[int, ...]:
        """The order that puts height and width last."""
        spatial = (self.height_axis, self.height_axis + 1)
        return (*(axis for axis in range(len(self.shape)) if axis not in spatial), *spatial)

    @property
    def stack_axis(self) -> int | None:
        """The axis along which frames are stacked, if they are: the first, or the last where channels come last."""
        if len(self.shape) == 2:
            return None
        return 0 if self.height_axis > 0 else len(self.shape) - 1

    def __str__(self) -> str:
        channels, height, width = self.channels_first
        where = ["channels last", "channels first"][self.height_axis > 0] if len(self.shape) == 3 else "stack folded"
        return f"{height}x{width} with {channels} channels ({where if len(self.shape) > 2 else 'no channel axis'})"


def image_layout(shape: tuple[int, ...], axes: ImageAxes = ImageAxes.AUTO) -> ImageLayout | None:
    """The layout of an array, None for one that is not convolved; raises `ConfigError` for an ambiguous one."""
    if axes is ImageAxes.FLAT or len(shape) < 2:
        return None
    if axes is not ImageAxes.AUTO:
        axis = max(len(shape) - (2 if axes is ImageAxes.CHANNELS_FIRST else 3), 0)
        if min(shape[axis : axis + 2]) >= MIN_CONVOLVED_SIDE:
            return ImageLayout(shape, axis)
        if any(min(pair) >= MIN_CONVOLVED_SIDE for pair in pairwise(shape)):
            raise ConfigError(
                f"network.image_layout={axes.value} takes {shape[axis]} and {shape[axis + 1]} for height and width of an image "
                f"of shape {shape}, too few to convolve; set it to auto or the other order, or to flat"
            )
        return None
    pairs = [axis for axis in range(len(shape) - 1) if min(shape[axis : axis + 2]) >= MIN_IMAGE_SIDE]
    if sum(side >= MIN_IMAGE_SIDE for side in shape) < 2:
        return None
    for axis in pairs:
        others = (*shape[:axis], *shape[axis + 2 :])
        if max(others, default=0) < min(shape[axis : axis + 2]):
            return ImageLayout(shape, axis)
    raise ConfigError(
        f"cannot tell height and width of an image of shape {shape}: two neighbouring axes must be larger than all others; "
        "set network.image_layout to channels_first, channels_last or flat"
    )
