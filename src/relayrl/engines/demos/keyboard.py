"""The keyboard, through pygame: a window that shows the environment, at the speed that suits it, and the keys held down."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.engines.demos.key_actor import KeySource
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import ConfigError

QUIT_KEY = "escape"
MIN_SIDE = 400
"""Pixels: smaller pictures are enlarged."""


class PygameKeys(KeySource):
    """A window. Escape, or closing it, ends the recording."""

    def __init__(self, title: str, frames_per_s: float | None = None) -> None:
        """`frames_per_s` is the speed, None the environment's own."""
        try:
            import pygame
        except ImportError as error:
            raise ConfigError("the keyboard is read through pygame; pip install pygame-ce") from error
        self._pygame: Any = pygame
        self._title, self._frames_per_s = title, frames_per_s
        self._held: set[str] = set()

    def begin(self, env: VectorEnvironment) -> None:
        try:
            self._pygame.display.init()
            self._clock = self._pygame.time.Clock()
            self._env, frame = env, env.frames([0])[0]
            scale = max(1, -(-MIN_SIDE // max(frame.shape[:2])))
            self._size = (frame.shape[1] * scale, frame.shape[0] * scale)
            self._screen = self._pygame.display.set_mode(self._size)
        except self._pygame.error as error:
            raise ConfigError(
                f"there is no window to play in: {error}; record a script of keys with --script"
            ) from error
        self._pygame.display.set_caption(self._title)
        self._frames_per_s = self._frames_per_s or env.drawing.frames_per_s
        self.show()

    def show(self) -> None:
        frame = np.swapaxes(self._env.frames([0])[0], 0, 1)
        picture = self._pygame.surfarray.make_surface(frame)
        self._screen.blit(self._pygame.transform.scale(picture, self._size), (0, 0))
        self._pygame.display.flip()
        self._clock.tick(self._frames_per_s)

    def pressed(self) -> frozenset[str]:
        tapped: set[str] = set()  # pressed and let go within one step
        for event in self._pygame.event.get():
            if event.type == self._pygame.QUIT:
                self.goes_on = False
            elif event.type in (self._pygame.KEYDOWN, self._pygame.KEYUP):
                name = self._pygame.key.name(event.key)
                if event.type == self._pygame.KEYDOWN:
                    self._held.add(name)
                    tapped.add(name)
                else:
                    self._held.discard(name)
        if QUIT_KEY in tapped:
            self.goes_on = False
        return frozenset(self._held | tapped)

    def close(self) -> None:
        """Close the window."""
        self._pygame.quit()
