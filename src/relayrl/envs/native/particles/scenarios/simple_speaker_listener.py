"""simple_speaker_listener: one knows the goal and can only speak, the other can only move and listen.

Both earn minus the squared distance of the listener to the goal. The speaker sees the goal's colour; the listener its own
velocity, the landmarks (relative) and what the speaker said.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.native_settings import ParticleSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns
from relayrl.envs.native.particles.particle_worlds import ParticleWorlds
from relayrl.envs.native.rasteriser import BLUE, GREEN, GREY, RED, Colour

COLOURS = np.full((3, 3), 0.15) + 0.5 * np.eye(3)
"""[landmark, 3]."""


class SimpleSpeakerListenerSettings(ParticleSettings):
    """Options of `native:simple_speaker_listener`."""


class SimpleSpeakerListenerWorlds(ParticleWorlds):
    """Speaker 0, listener 1, landmarks 2 … 4; `choice` `[1, B]` is the goal."""

    def __init__(
        self,
        settings: SimpleSpeakerListenerSettings,
        layout: Layout,
        groups: Mapping[str, AgentGroup],
        num_worlds: int,
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        xp = self.xp
        self._geometry = self.see(layout.landmark_rows()[None], observers=slice(1, 2))
        self._colour_table = xp.from_host(np.ascontiguousarray(COLOURS.T, self.dtype))
        speaker, listener = (ObservationColumns(xp, observation) for observation in self.observations.values())
        self._goal_colour = speaker.numbers(3)
        self._velocity_columns = listener.vector()
        self._landmark_columns = listener.vectors(3)
        self._heard = listener.numbers(3)
        self._rewards = [reward[:, 0] for reward in self.rewards.values()]

    def update_geometry(self) -> None:
        self._geometry.update(self.position)

    def reward(self) -> None:
        xp = self.xp
        distance = xp.take_along(self._geometry.distance, self.choice[None], 1)[0, 0]
        for reward in self._rewards:
            xp.copy(reward, -distance * distance)

    def write_fixed_observations(self) -> None:
        self.xp.copy(self._goal_colour, self._colour_table[:, self.choice])

    def write_observations(self) -> None:
        copy = self.xp.copy_envs_first
        copy(self._velocity_columns, self.velocity[:, 1:])
        copy(self._landmark_columns, self._geometry.offset)
        copy(self._heard, self.message)

    def colours(self, state: Mapping[str, Array]) -> list[Colour]:
        landmarks: list[Colour] = [RED, GREEN, BLUE]
        return [GREY, landmarks[int(state["choice"][0])], *landmarks]


def blueprint(settings: SimpleSpeakerListenerSettings) -> Blueprint:
    """`native:simple_speaker_listener` with these settings."""
    agents = [AgentBody("speaker_0", 0.075, moves=False, speaks=True), AgentBody("listener_0", 0.075)]
    layout = Layout(agents, [LandmarkBody(0.04)] * 3, message_size=3, choices=(3,))
    return particle_blueprint(
        "simple_speaker_listener",
        settings,
        layout,
        [3, 11],
        lambda groups, num_worlds: SimpleSpeakerListenerWorlds(settings, layout, groups, num_worlds),
    )
