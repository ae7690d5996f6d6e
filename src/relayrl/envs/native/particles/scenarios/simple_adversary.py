"""simple_adversary: good agents gather at a goal among N landmarks; an adversary wants to be there too but must guess which.

Good agents earn the adversary's distance to the goal minus that of their nearest; the adversary earns minus its own. Nobody
collides. Observation: the goal (good agents only), landmarks, other agents, all relative.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.native_settings import NeighbourSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns, write_nearest
from relayrl.envs.native.particles.particle_worlds import ParticleWorlds
from relayrl.envs.native.rasteriser import BLUE, GREEN, INK, RED, Colour


class SimpleAdversarySettings(NeighbourSettings):
    """Options of `native:simple_adversary`."""

    N: int = Field(2, ge=1, description="number of good agents and of landmarks")


class SimpleAdversaryWorlds(ParticleWorlds):
    """The adversary, then N good agents, then N landmarks; `choice` `[1, B]` is the goal."""

    def __init__(
        self, settings: SimpleAdversarySettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        self._options = settings
        seen = np.hstack([np.tile(layout.landmark_rows(), (layout.num_agents, 1)), layout.others()])
        self._geometry = self.see(seen)
        self._goal = self.xp.zeros((2, 1, num_worlds), self.dtype)
        self._to_goal = self.xp.zeros((2, layout.num_agents, num_worlds), self.dtype)
        self.derived = {**self.derived, "goal": self._goal, "to_goal": self._to_goal}
        self._adversary_reward, self._good_reward = (self.xp.permute(r, (1, 0)) for r in self.rewards.values())
        self._columns = []
        for name, rows in self.rows.items():
            columns = ObservationColumns(self.xp, self.observations[name])
            goal = columns.vector() if rows.start > 0 else None
            landmarks = columns.vectors(settings.num_landmark_neighbors or settings.N)
            others = columns.vectors(settings.num_agent_neighbors or settings.N)
            self._columns.append((rows, goal, landmarks, others))

    def update_geometry(self) -> None:
        self._geometry.update(self.position)
        self.xp.subtract(self._goal, self.position[:, : self.layout.num_agents], out=self._to_goal)

    def observe(self) -> None:
        self._goal[...] = self.chosen_landmarks(self.choice)
        super().observe()

    def reward(self) -> None:
        xp = self.xp
        distance = xp.sqrt(self._to_goal[0] * self._to_goal[0] + self._to_goal[1] * self._to_goal[1])
        xp.copy(self._adversary_reward, -distance[:1])
        xp.copy(self._good_reward, (distance[0] - xp.min(distance[1:], 0))[None])

    def write_observations(self) -> None:
        xp, options = self.xp, self._options
        offset, distance, n = self._geometry.offset, self._geometry.distance, options.N
        for rows, goal, landmarks, others in self._columns:
            if goal is not None:
                xp.copy_envs_first(goal, self._to_goal[:, rows])
            limit = options.num_landmark_neighbors
            write_nearest(xp, landmarks, offset[:, rows, :n], distance[rows, :n], limit)
            write_nearest(xp, others, offset[:, rows, n:], distance[rows, n:], options.num_agent_neighbors)

    def colours(self, state: Mapping[str, Array]) -> list[Colour]:
        colours = super().colours(state)
        colours[self.layout.num_agents + int(state["choice"][0])] = GREEN
        return colours


def blueprint(settings: SimpleAdversarySettings) -> Blueprint:
    """`native:simple_adversary` with these settings."""
    good = [AgentBody(f"agent_{n}", 0.15, BLUE) for n in range(settings.N)]
    landmarks = [LandmarkBody(0.08, INK)] * settings.N
    layout = Layout([AgentBody("adversary_0", 0.15, RED), *good], landmarks, choices=(settings.N,))
    size = 2 * (settings.num_landmark_neighbors or settings.N) + 2 * (settings.num_agent_neighbors or settings.N)
    return particle_blueprint(
        "simple_adversary",
        settings,
        layout,
        [size] + [size + 2] * settings.N,
        lambda groups, num_worlds: SimpleAdversaryWorlds(settings, layout, groups, num_worlds),
    )
