"""simple_reference: two agents, each knows only where the other should go, and both move and speak.

An agent's own reward is minus the distance of the *other* to the goal that it knows; `local_ratio` weighs it against the mean
of both. Observation: own velocity, landmarks (relative), the colour of the other's goal, what the other said.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.native_settings import ParticleSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns
from relayrl.envs.native.particles.particle_worlds import ParticleWorlds
from relayrl.envs.native.rasteriser import BLUE, GREEN, RED, Colour

COLOURS = np.full((3, 3), 0.25) + 0.5 * np.eye(3)
"""[landmark, 3]."""


class SimpleReferenceSettings(ParticleSettings):
    """Options of `native:simple_reference`."""

    local_ratio: float = Field(0.5, ge=0, le=1, description="weight of an agent's own reward; 1 − it is the team's")


class SimpleReferenceWorlds(ParticleWorlds):
    """Agents 0 and 1, landmarks 2 … 4; `choice` `[2, B]`: the goal that each agent knows, for the other to reach."""

    def __init__(
        self, settings: SimpleReferenceSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        xp = self.xp
        self._local_ratio = settings.local_ratio
        self._geometry = self.see(np.tile(layout.landmark_rows(), (2, 1)))
        self._colour_table = xp.from_host(np.ascontiguousarray(COLOURS.T, self.dtype))
        (observation,), (reward,) = self.observations.values(), self.rewards.values()
        columns = ObservationColumns(xp, observation)
        self._velocity_columns = columns.vector()
        self._landmark_columns = columns.vectors(3)
        self._goal_colour = columns.numbers(3)
        self._heard = columns.numbers(10)
        self._reward = xp.permute(reward, (1, 0))
        self._other = xp.from_host(np.array([1, 0]))

    def update_geometry(self) -> None:
        self._geometry.update(self.position)

    def reward(self) -> None:
        xp, ratio = self.xp, self._local_ratio
        of_other = self._geometry.distance[self._other]  # [2, 3, B]
        distance = xp.take_along(of_other, self.choice[:, None], 1)[:, 0]
        team = (distance[0] + distance[1]) / 2
        xp.copy(self._reward, -(1 - ratio) * team[None] - ratio * distance)

    def write_fixed_observations(self) -> None:
        self.xp.copy(self._goal_colour, self._colour_table[:, self.choice])

    def write_observations(self) -> None:
        copy = self.xp.copy_envs_first
        copy(self._velocity_columns, self.velocity)
        copy(self._landmark_columns, self._geometry.offset)
        copy(self._heard, self.message[:, self._other])

    def colours(self, state: Mapping[str, Array]) -> list[Colour]:
        landmarks: list[Colour] = [RED, GREEN, BLUE]
        goal_of_1, goal_of_0 = state["choice"]
        return [landmarks[int(goal_of_0)], landmarks[int(goal_of_1)], *landmarks]


def blueprint(settings: SimpleReferenceSettings) -> Blueprint:
    """`native:simple_reference` with these settings."""
    agents = [AgentBody(f"agent_{n}", speaks=True) for n in range(2)]
    layout = Layout(agents, [LandmarkBody()] * 3, message_size=10, choices=(3, 3))
    return particle_blueprint(
        "simple_reference",
        settings,
        layout,
        [21, 21],
        lambda groups, num_worlds: SimpleReferenceWorlds(settings, layout, groups, num_worlds),
    )
