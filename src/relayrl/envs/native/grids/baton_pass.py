"""baton_pass: a relay. A runner carries the baton to the next one and leaves; the last one carries it to the goal.

Runners wait in cells of their own. The one with the baton moves; when it touches the next one, by stepping onto its cell, it
leaves the episode and the next one goes on from there. The last runner gets 1 for reaching the goal, which is the team's
reward: everybody who ran before has left by then.

Observation: own position; which runner one is, one-hot; where one has to go, relative, in columns of each runner's own, so that
what the last one learns says nothing to the others. With `absorbing`, those who wait for the baton see zeros as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.grids.grid_worlds import GridSettings, GridWorlds, grid_blueprint
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import BLUE, GREEN, GREY, SAND


class BatonPassSettings(GridSettings):
    """Options of `native:baton_pass`."""


class BatonPassWorlds(GridWorlds):
    """`target` [2, N, B]: where each runner has to go. `is_alive` is who has the baton."""

    def __init__(self, settings: BatonPassSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(settings, xp, num_worlds, _observation_size(settings))
        n = settings.num_agents
        self.target = xp.zeros((2, n, num_worlds), "int64")
        self.state = {"position": self.position, "is_alive": self.is_alive, "target": self.target}
        self._who = xp.from_host(np.eye(n, dtype=settings.dtype)[:, :, None])

    def begin(self, draws: XArray) -> None:
        n = self.options.num_agents
        for axis, cell in enumerate(self.cells(draws)):
            self.position[axis], self.target[axis] = cell[:n], cell[1 : n + 1]
        self.is_alive[...] = False
        self.is_alive[0] = True
        self.observe()

    def play(self) -> XArray:
        arrives = self.is_alive & self.xp.logical_and(*(self.position == self.target))
        self.is_alive[:-1] &= ~arrives[:-1]
        self.is_alive[1:] |= arrives[:-1]
        return arrives[-1]

    def observe(self) -> None:
        n, columns = self.options.num_agents, self.columns
        columns[0:2] = self.scaled(2 * self.position) - 1
        columns[2 : 2 + n] = self._who
        x, y = self.scaled(self.target - self.position)
        columns[2 + n : 2 + 2 * n], columns[2 + 2 * n :] = self._who * x, self._who * y
        self.hide_from_the_gone()

    def draw(self, state: Mapping[str, Array]) -> Array:
        canvas = self.canvas()
        goal = state["target"][:, -1]
        canvas.box((float(goal[0]), float(goal[1])), (0.8, 0.8), 0.0, SAND)
        runner = int(state["is_alive"].argmax())
        for n, cell in enumerate(state["position"].T):
            self.draw_agent(canvas, cell, n, GREEN if n == runner else BLUE if n > runner else GREY)
        return canvas.pixels()


def _observation_size(settings: BatonPassSettings) -> int:
    return 2 + 3 * settings.num_agents


def blueprint(settings: BatonPassSettings) -> Blueprint:
    """`native:baton_pass` with these settings."""
    xp = namespace_of(settings.device)
    return grid_blueprint(
        "baton_pass", settings, xp, _observation_size(settings), partial(BatonPassWorlds, settings, xp)
    )
