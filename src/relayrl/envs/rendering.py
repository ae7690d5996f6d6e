"""How environments are drawn: in which mode they were made, how fast their pictures follow each other, and one picture.

Gymnasium's convention, which PettingZoo and environments of users share: the mode is an argument of the constructor and an
attribute afterwards, `metadata["render_modes"]` lists those that exist, and `render()` gives `[H, W, 3]` uint8 in the mode
`rgb_array`. In the mode `human` the environment shows a window by itself, in every step. Files of pictures are
`runtime.pictures`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import EnvError

DEFAULT_FRAMES_PER_S = 20.0
_NUM_PICTURE_AXES = 3


class RenderMode(Enum):
    """What drawing an environment gives: an array, or a window on the screen."""

    RGB_ARRAY = "rgb_array"
    HUMAN = "human"


class VideoFormat(Enum):
    """What pictures of episodes are written as."""

    GIF = "gif"
    MP4 = "mp4"


@dataclass(frozen=True, slots=True)
class Drawing:
    """The modes in which environments, as they were made, can be drawn, and the frames per second that suit them."""

    modes: tuple[RenderMode, ...] = ()
    frames_per_s: float = DEFAULT_FRAMES_PER_S
    known: tuple[str, ...] = ()
    """The modes that an environment names, whichever it was made with."""


NOT_DRAWN = Drawing()


def drawing_of(env: Any) -> Drawing:
    """How a single environment was made to be drawn; it may be one of Gymnasium's, of PettingZoo's or of a user."""
    mode, metadata = getattr(env, "render_mode", None), getattr(env, "metadata", None) or {}
    named = tuple(str(one) for one in metadata.get("render_modes", ()) if one is not None)
    modes = tuple(one for one in RenderMode if one.value == mode and (mode in named or not named))
    return Drawing(modes, float(metadata.get("render_fps") or DEFAULT_FRAMES_PER_S), named)


def picture_of(render: Callable[[], Any]) -> Array:
    """`[H, W, 3]` uint8, a copy: environments may draw into the same array again."""
    drawn = render()
    picture = np.array(drawn[-1] if isinstance(drawn, list) and drawn else drawn)
    if picture.ndim != _NUM_PICTURE_AXES or picture.shape[2] not in (3, 4) or not picture.size:
        raise EnvError(f"render() gave {picture.dtype}{list(picture.shape)}, not a picture [H, W, 3] of uint8")
    return np.ascontiguousarray(picture[..., :3]).astype(np.uint8)


def pictures_of(render: Callable[[], Any], envs: Sequence[int]) -> list[Array]:
    """Pictures of some environments, where `render()` draws all of them."""
    drawn = render()
    return [picture_of(partial(drawn.__getitem__, b)) for b in envs]
