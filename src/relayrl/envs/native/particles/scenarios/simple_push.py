"""simple_push: an agent goes to its goal, an adversary pushes it away.

The agent earns minus its distance to the goal, the adversary that distance minus its own. Observation of the agent: own
velocity, goal (relative), its own colour (which tells the goal), landmarks (relative), their colours, the adversary
(relative); of the adversary: own velocity, landmarks, the agent.
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
from relayrl.envs.native.rasteriser import BLUE, GREEN, RED, Colour

LANDMARK_COLOURS = np.array([[0.1, 0.1 + 0.8, 0.1], [0.1, 0.1, 0.1 + 0.8]])
AGENT_COLOURS = np.array([[0.25, 0.25 + 0.5, 0.25], [0.25, 0.25, 0.25 + 0.5]])
"""[goal, 3]: the agent wears the colour of its goal."""
_SEEN = np.array([[2, 3, 1], [2, 3, 0]])  # both landmarks, the other agent


class SimplePushSettings(ParticleSettings):
    """Options of `native:simple_push`."""


class SimplePushWorlds(ParticleWorlds):
    """Adversary 0, agent 1, landmarks 2 and 3; `choice` `[1, B]` is the goal."""

    def __init__(
        self, settings: SimplePushSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        xp = self.xp
        self._geometry = self.see(_SEEN)
        self.collide(self._geometry, _SEEN, slice(2, None))
        self._goal = xp.zeros((2, 1, num_worlds), self.dtype)
        self._to_goal = xp.zeros((2, 2, num_worlds), self.dtype)
        self.derived = {**self.derived, "goal": self._goal, "to_goal": self._to_goal}
        self._agent_colours = xp.from_host(np.ascontiguousarray(AGENT_COLOURS.T, self.dtype))
        adversary, agent = (ObservationColumns(xp, observation) for observation in self.observations.values())
        self._adversary_velocity = adversary.vector()
        self._adversary_sight = adversary.vectors(3)
        self._agent_velocity = agent.vector()
        self._agent_goal = agent.vector()
        self._agent_colour = agent.numbers(3)
        self._agent_landmarks = agent.vectors(2)
        agent.numbers(6)[...] = xp.from_host(LANDMARK_COLOURS.reshape(6, 1, 1).astype(self.dtype))
        self._agent_other = agent.vectors(1)
        self._adversary_reward, self._agent_reward = (reward[:, 0] for reward in self.rewards.values())

    def update_geometry(self) -> None:
        self._geometry.update(self.position)
        self.xp.subtract(self._goal, self.position[:, :2], out=self._to_goal)

    def observe(self) -> None:
        self._goal[...] = self.chosen_landmarks(self.choice)
        super().observe()

    def reward(self) -> None:
        xp = self.xp
        distance = xp.sqrt(self._to_goal[0] * self._to_goal[0] + self._to_goal[1] * self._to_goal[1])
        xp.negative(distance[1], out=self._agent_reward)
        xp.subtract(distance[1], distance[0], out=self._adversary_reward)

    def write_fixed_observations(self) -> None:
        self.xp.copy(self._agent_colour, self._agent_colours[:, self.choice])

    def write_observations(self) -> None:
        copy, offset = self.xp.copy_envs_first, self._geometry.offset
        copy(self._adversary_velocity, self.velocity[:, :1])
        copy(self._adversary_sight, offset[:, :1])
        copy(self._agent_velocity, self.velocity[:, 1:])
        copy(self._agent_goal, self._to_goal[:, 1:])
        copy(self._agent_landmarks, offset[:, 1:, :2])
        copy(self._agent_other, offset[:, 1:, 2:])

    def colours(self, state: Mapping[str, Array]) -> list[Colour]:
        goal = int(state["choice"][0])
        return [RED, (GREEN, BLUE)[goal], GREEN, BLUE]


def blueprint(settings: SimplePushSettings) -> Blueprint:
    """`native:simple_push` with these settings."""
    layout = Layout([AgentBody("adversary_0"), AgentBody("agent_0")], [LandmarkBody()] * 2, choices=(2,))
    return particle_blueprint(
        "simple_push",
        settings,
        layout,
        [8, 19],
        lambda groups, num_worlds: SimplePushWorlds(settings, layout, groups, num_worlds),
    )
