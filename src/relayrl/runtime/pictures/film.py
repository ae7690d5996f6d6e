"""What is filmed of an evaluation: the first episode of some environments, side by side.

    film = Film(VideoFormat.GIF, num_tiles=4)
    evaluate(env, actors, episodes=20, seed=0, film=film)
    path.write_bytes(film.content())

A tile stays on its last frame until the others have ended. Nothing of the episodes changes by being filmed.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.rendering import RenderMode, VideoFormat
from relayrl.errors import ConfigError, EnvError, UnknownNameError
from relayrl.runtime.pictures.video_files import encode, fitted, require_encoder, smaller

MAX_FRAMES = {VideoFormat.GIF: 500, VideoFormat.MP4: 3_000}
"""They are held in memory, compressed, and GIFs are read in browsers."""
MAX_FRAMES_PER_S = {VideoFormat.GIF: 25, VideoFormat.MP4: 60}
"""Of an environment that is faster, every second step is drawn, or every third, and so on."""
MAX_TILED_SIDE = {VideoFormat.GIF: 640, VideoFormat.MP4: 1_920}
"""Pixels: several tiles are made smaller until all of them fit; a single one keeps its size."""
_GAP = 4
_BACKGROUND = 200


class Watcher(ABC):
    """Sees the first episodes of an evaluation while they are played."""

    mode: RenderMode

    @abstractmethod
    def begin(self, env: VectorEnvironment) -> None:
        """All environments have begun an episode; `ConfigError` where they cannot be drawn."""

    @abstractmethod
    def see(self, env: VectorEnvironment, over: Array) -> None:
        """All environments have stepped; episodes ended, or were cut, where `over` [B]."""


class Window(Watcher):
    """Shows the first environment on the screen, all episodes long."""

    mode = RenderMode.HUMAN

    def begin(self, env: VectorEnvironment) -> None:
        _draw(env, [0], self.mode)

    def see(self, env: VectorEnvironment, over: Array) -> None:
        del over
        env.frames([0], self.mode)


class Film(Watcher):
    """The first episode of up to `num_tiles` environments, as the content of a file."""

    mode = RenderMode.RGB_ARRAY

    def __init__(self, file_format: VideoFormat, num_tiles: int = 1) -> None:
        require_encoder(file_format)
        self.format, self._num_tiles = file_format, num_tiles
        self._frames: list[bytes] = []
        self._last: list[Array] = []
        self._running: set[int] = set()
        self._frames_per_s = 0.0
        self.is_cut = False
        """Whether episodes went on behind the last frame."""

    def begin(self, env: VectorEnvironment) -> None:
        tiles = range(min(self._num_tiles, env.num_envs))
        self._last = _draw(env, tiles, self.mode)
        steps_per_s = env.drawing.frames_per_s
        self._running, self._num_steps = set(tiles), 0
        self._steps_per_frame = math.ceil(steps_per_s / MAX_FRAMES_PER_S[self.format])
        self._frames_per_s = steps_per_s / self._steps_per_frame
        self._side = MAX_TILED_SIDE[self.format] if len(tiles) > 1 else None
        self._frames = []
        self._keep()

    def see(self, env: VectorEnvironment, over: Array) -> None:
        if not self._running:
            return
        ended = {b for b in self._running if over[b]}
        self._num_steps += 1
        if not ended and self._num_steps % self._steps_per_frame:
            return
        final = env.final_frames() if ended else {}
        for b in ended & final.keys():
            self._last[b] = final[b]
        self._running -= ended
        running = sorted(self._running)
        for b, frame in zip(running, env.frames(running), strict=True):
            self._last[b] = frame
        if running or final:
            self._keep()
        if len(self._frames) >= MAX_FRAMES[self.format] and self._running:
            self.is_cut, self._running = True, set()

    def _keep(self) -> None:
        frame = tiled(self._last, self._side)
        if not self._frames:
            self._shape = frame.shape
        # 500 frames of CartPole are 360 MB; most of it is paper.
        self._frames.append(zlib.compress(fitted(frame, self._shape).tobytes(), 1))

    @property
    def num_frames(self) -> int:
        return len(self._frames)

    def content(self) -> bytes:
        """The film as a file of its format."""
        frames = (np.frombuffer(zlib.decompress(frame), np.uint8).reshape(self._shape) for frame in self._frames)
        return encode(frames, self._shape, self.format, self._frames_per_s)


def watcher_of(render: str, num_tiles: int) -> Watcher:
    """What `--render` names: `gif` or `mp4`, or `human`. A missing package is missed here, before an episode is played."""
    if render == RenderMode.HUMAN.value:
        return Window()
    formats = {one.value: one for one in VideoFormat}
    if render not in formats:
        raise UnknownNameError("kind of picture", render, [*formats, RenderMode.HUMAN.value])
    return Film(formats[render], num_tiles)


def require_drawn(env: VectorEnvironment, name: str, mode: RenderMode) -> None:
    """Raise `ConfigError` where environments cannot be drawn in the mode that they were made for."""
    if mode in env.drawing.modes:
        return
    known = ", ".join(env.drawing.known) or "none"
    raise ConfigError(f"{name} cannot be drawn: it has no render mode {mode.value!r} (it has: {known})")


def _draw(env: VectorEnvironment, envs: Sequence[int], mode: RenderMode) -> list[Array]:
    """The first frames, which show whether there can be any: a library for it or a display may be missing."""
    try:
        return env.frames(envs, mode)
    except EnvError as error:
        reason = str(getattr(error, "reason", error)).splitlines()[0]
        raise ConfigError(f"the environment cannot be drawn: {reason}") from error


def tiled(frames: Sequence[Array], max_side: int | None = None) -> Array:
    """Pictures `[H, W, 3]` in rows and columns, about as many of each; smaller where it would exceed `max_side`."""
    if len(frames) == 1:
        return frames[0]
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    stride = 1 if max_side is None else max(1, math.ceil(max(columns * width, rows * height) / max_side))
    height, width = math.ceil(height / stride), math.ceil(width / stride)  # as `smaller` makes them
    size = (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3)
    canvas = np.full(size, _BACKGROUND, np.uint8)
    for i, frame in enumerate(frames):
        small = smaller(frame, stride)
        y, x = i // columns * (height + _GAP), i % columns * (width + _GAP)
        canvas[y : y + small.shape[0], x : x + small.shape[1]] = small
    return canvas
