"""simple_spread: N agents cover N landmarks together, without bumping into each other.

Everybody earns −Σ over landmarks of the distance to the nearest agent, and −1 for each agent that it touches itself;
`local_ratio` weighs the second against the first. Observation: own velocity, own position, landmarks, other agents (relative),
and a silent channel of two zeros per other agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from relayrl.compiled.loader import num_threads
from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import XArray
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.native_settings import NeighbourSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.geometry import CONTACT_FORCE, CONTACT_MARGIN, NEGLIGIBLE, TINY, log1p_exp
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns, write_nearest
from relayrl.envs.native.particles.particle_worlds import DAMPING, STEP_S, ParticleWorlds
from relayrl.envs.native.rasteriser import BLUE, INK

AGENT_SIZE = 0.15
COVER_DISTANCE = 0.1


class SimpleSpreadSettings(NeighbourSettings):
    """Options of `native:simple_spread`."""

    N: int = Field(3, ge=1, description="number of agents and of landmarks")
    local_ratio: float = Field(0.5, ge=0, le=1, description="weight of an agent's own reward; 1 − it is the team's")
    terminate_on_success: bool = Field(False, description="end the episode when every landmark is covered")


class SimpleSpreadWorlds(ParticleWorlds):
    """Agents 0 … N − 1, then landmarks."""

    def __init__(
        self, settings: SimpleSpreadSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        self._options = settings
        n = settings.N
        seen = np.hstack([np.tile(layout.landmark_rows(), (n, 1)), layout.others()])
        self._geometry = self.see(seen)
        self.collide(self._geometry, seen, slice(n, None))
        (observation,), (reward,) = self.observations.values(), self.rewards.values()
        self._reward = self.xp.permute(reward, (1, 0))
        columns = ObservationColumns(self.xp, observation)
        self._velocity_columns = columns.vector()
        self._position_columns = columns.vector()
        self._landmark_columns = columns.vectors(settings.num_landmark_neighbors or n)
        self._agent_columns = columns.vectors(settings.num_agent_neighbors or n - 1)
        self._to_landmarks, self._landmark_distance = self._geometry.offset[:, :, :n], self._geometry.distance[:, :n]
        self._to_others, self._other_distance = self._geometry.offset[:, :, n:], self._geometry.distance[:, n:]
        self._team = self.xp.zeros((num_worlds,), self.dtype)
        self._step = self.compiled = self._compiled_step(seen)

    def _compiled_step(self, seen: Array) -> Any:
        """A step by one kernel, on the arrays of these worlds; None where there is none for them."""
        options, layout, n = self._options, self.layout, self._options.N
        kernels = step_kernels(self.xp, self.dtype) if type(self) is SimpleSpreadWorlds else None
        if kernels is None:
            return None
        (observation,), (reward,) = self.observations.values(), self.rewards.values()
        reach = layout.reach(np.arange(n), seen[:, n:]).astype(np.float32)
        self._action_dtype = np.float32 if options.continuous_actions else np.int64
        self._exponent = np.zeros(1 + reach.size * self.num_worlds, np.float32)
        geometry = self._geometry.offset, self._geometry.distance
        return kernels.SpreadStep(
            (n, self.num_worlds, options.num_landmark_neighbors or 0, options.num_agent_neighbors or 0),
            options.continuous_actions,
            options.terminate_on_success,
            (layout.agents[0].acceleration, STEP_S, 1 - DAMPING),
            (CONTACT_MARGIN, NEGLIGIBLE, -CONTACT_FORCE * CONTACT_MARGIN, TINY),
            (options.local_ratio, 2 * AGENT_SIZE, COVER_DISTANCE),
            (self.position, self.velocity, *geometry, reward, self.terminated, reach, self._exponent, observation),
        )

    def advance(self, actions: Mapping[str, XArray]) -> None:
        if self._step is None:
            super().advance(actions)
            return
        (name,) = self.groups
        log1p_exp(self._exponent[: self._step.find_contacts()])
        self._step.step(np.ascontiguousarray(actions[name], self._action_dtype), num_threads())

    def observe(self) -> None:
        if self._step is None:
            super().observe()
        else:
            self._step.observe(num_threads())

    def update_geometry(self) -> None:
        self._geometry.update(self.position)

    def reward(self) -> None:
        xp, ratio = self.xp, self._options.local_ratio
        uncovered = xp.min(self._landmark_distance, 0)
        xp.sum(uncovered, 0, self._team)
        collisions = xp.count(xp.less(self._other_distance, 2 * AGENT_SIZE), 1)
        xp.multiply(self._team, ratio - 1, out=self._team)
        xp.multiply(collisions, -ratio, out=self._reward)
        xp.add(self._reward, self._team, out=self._reward)  # (1 − ρ) (−Σ min distance) + ρ (−collisions)
        if self._options.terminate_on_success:
            xp.logical_not(xp.any_along(xp.greater_equal(uncovered, COVER_DISTANCE), 0), out=self.terminated)

    def write_observations(self) -> None:
        xp, options = self.xp, self._options
        xp.copy_envs_first(self._velocity_columns, self.velocity)
        xp.copy_envs_first(self._position_columns, self.position[:, : options.N])
        write_nearest(
            xp, self._landmark_columns, self._to_landmarks, self._landmark_distance, options.num_landmark_neighbors
        )
        write_nearest(xp, self._agent_columns, self._to_others, self._other_distance, options.num_agent_neighbors)


def blueprint(settings: SimpleSpreadSettings) -> Blueprint:
    """`native:simple_spread` with these settings."""
    layout = Layout(
        agents=[AgentBody(f"agent_{n}", AGENT_SIZE, BLUE) for n in range(settings.N)],
        landmarks=[LandmarkBody(colour=INK)] * settings.N,
    )
    num_landmarks = settings.num_landmark_neighbors or settings.N
    num_others = settings.num_agent_neighbors or settings.N - 1
    return particle_blueprint(
        "simple_spread",
        settings,
        layout,
        [4 + 2 * num_landmarks + 2 * num_others + 2 * num_others] * settings.N,
        lambda groups, num_worlds: SimpleSpreadWorlds(settings, layout, groups, num_worlds),
        may_terminate=settings.terminate_on_success,
    )
