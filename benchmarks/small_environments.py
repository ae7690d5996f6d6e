"""Environments of the generic presets' comparison that no library has."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CELLS, PIXELS_PER_CELL = 9, 4


class Catch(gymnasium.Env[np.ndarray, int]):
    """A ball falls through 9x9 cells, drawn as 36x36 grey pixels; a paddle on the lowest row moves left, stays or moves right.

    Return 1 where the ball is caught, −1 where it is not (bsuite's Catch, in pixels). Random play has about −0.6.
    """

    def __init__(self) -> None:
        side = CELLS * PIXELS_PER_CELL
        self.observation_space = spaces.Box(0, 255, (side, side, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self._ball, self._row, self._paddle = 0, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball, self._row, self._paddle = int(self.np_random.integers(CELLS)), 0, CELLS // 2
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._row += 1
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        has_landed = self._row == CELLS - 1
        reward = (1.0 if self._paddle == self._ball else -1.0) if has_landed else 0.0
        return self._picture(), reward, has_landed, False, {}

    def _picture(self) -> np.ndarray:
        cells = np.zeros((CELLS, CELLS, 1), np.uint8)
        cells[self._row, self._ball] = 255
        cells[CELLS - 1, self._paddle] = 128
        return cells.repeat(PIXELS_PER_CELL, 0).repeat(PIXELS_PER_CELL, 1)
