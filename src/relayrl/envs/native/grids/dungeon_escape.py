"""dungeon_escape: a dragon holds the key to the door. Who kills it dies with it, and drops the key for the others.

After the "Dungeon Escape" of ML-Agents and of Cohen et al. (2021), where a locked door keeps three agents in: one must die for
the others. Agents, dragon and door are in different cells. Who steps onto the dragon kills it and dies, also where several
do. The first of the others to reach that cell takes the key; the door opens when it brings the key there, and everybody alive
gets 1. The episode is over then, or when nobody is left.

Observation: own position; whether the dragon lives, whether the key lies there, is held by oneself, by another; where dragon or
key are, relative, zero once the key is held; where the door is; for each other agent where it is, and whether it lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.grids.grid_worlds import GridSettings, GridWorlds, grid_blueprint
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import BLUE, GREEN, GREY, INK, RED, SAND


class DungeonEscapeSettings(GridSettings):
    """Options of `native:dungeon_escape`."""


class DungeonEscapeWorlds(GridWorlds):
    """Cells of `dragon` and `door` [2, B], whether the dragon lives [B], who `holds` the key [N, B]."""

    def __init__(self, settings: DungeonEscapeSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(settings, xp, num_worlds, _observation_size(settings))
        n = settings.num_agents
        self.dragon, self.door = xp.zeros((2, num_worlds), "int64"), xp.zeros((2, num_worlds), "int64")
        self.dragon_lives = xp.zeros((num_worlds,), "bool")
        self.holds = xp.zeros((n, num_worlds), "bool")
        self.state = {
            "position": self.position,
            "is_alive": self.is_alive,
            "dragon": self.dragon,
            "door": self.door,
            "dragon_lives": self.dragon_lives,
            "holds": self.holds,
        }
        self._others = xp.from_host((np.arange(n) + np.arange(1, n)[:, None]) % n)  # [N − 1, N]

    def begin(self, draws: XArray) -> None:
        n = self.options.num_agents
        for axis, cell in enumerate(self.cells(draws)):
            self.position[axis], self.dragon[axis], self.door[axis] = cell[:n], cell[n], cell[n + 1]
        self.is_alive[...], self.dragon_lives[...], self.holds[...] = True, True, False
        self.observe()

    def play(self) -> XArray:
        at_dragon = self.is_at(self.dragon) & self.is_alive
        dies = at_dragon & self.dragon_lives
        self.is_alive &= ~dies
        self.dragon_lives &= ~self.xp.any_along(dies, 0)
        takes = at_dragon & self.is_alive & ~self.dragon_lives & ~self.xp.any_along(self.holds, 0)
        self.holds |= takes & (takes.cumsum(0) == 1)  # the first of those who arrive together
        return self.xp.any_along(self.holds & self.is_at(self.door), 0)

    def observe(self) -> None:
        columns, is_held = self.columns, self.xp.any_along(self.holds, 0)
        columns[0:2] = self.scaled(2 * self.position) - 1
        columns[2], columns[3] = self.dragon_lives, ~self.dragon_lives & ~is_held
        columns[4], columns[5] = self.holds, is_held & ~self.holds
        columns[6:8] = self.scaled(self.dragon[:, None] - self.position) * ~is_held
        columns[8:10] = self.scaled(self.door[:, None] - self.position)
        offset = self.position[:, self._others] - self.position[:, None]  # [2, N − 1, N, B]
        columns[10::3], columns[11::3] = self.scaled(offset[0]), self.scaled(offset[1])
        columns[12::3] = self.is_alive[self._others]
        self.hide_from_the_gone()

    def draw(self, state: Mapping[str, Array]) -> Array:
        canvas = self.canvas()
        door, dragon = ((float(x), float(y)) for x, y in (state["door"], state["dragon"]))
        canvas.box(door, (0.8, 0.8), 0.0, SAND)
        if state["dragon_lives"]:
            canvas.disc(dragon, 0.4, RED, outline=INK)
        elif not state["holds"].any():
            canvas.box(dragon, (0.3, 0.15), 0.0, GREEN)
        for n, cell in enumerate(state["position"].T):
            alive = GREEN if state["holds"][n] else BLUE
            self.draw_agent(canvas, cell, n, alive if state["is_alive"][n] else GREY)
        return canvas.pixels()


def _observation_size(settings: DungeonEscapeSettings) -> int:
    return 10 + 3 * (settings.num_agents - 1)


def blueprint(settings: DungeonEscapeSettings) -> Blueprint:
    """`native:dungeon_escape` with these settings."""
    xp = namespace_of(settings.device)
    build = partial(DungeonEscapeWorlds, settings, xp)
    return grid_blueprint("dungeon_escape", settings, xp, _observation_size(settings), build)
