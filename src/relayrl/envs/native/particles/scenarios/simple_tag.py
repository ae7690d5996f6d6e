"""simple_tag: slow adversaries hunt quick prey between obstacles.

All adversaries earn 10 for every touch of any adversary and any prey; a prey loses 10 for every adversary that touches it, and
more the further it leaves the field. Observation: own velocity, own position, obstacles, other agents (relative), velocities
of the other prey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.envs.native.native_settings import NeighbourSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns, write_nearest
from relayrl.envs.native.particles.particle_worlds import ParticleWorlds
from relayrl.envs.native.rasteriser import GREEN, INK, RED

ADVERSARY_SIZE, PREY_SIZE, OBSTACLE_SIZE = 0.075, 0.05, 0.2
CATCH_REWARD = 10.0


class SimpleTagSettings(NeighbourSettings):
    """Options of `native:simple_tag`."""

    num_good: int = Field(1, ge=1, description="number of prey")
    num_adversaries: int = Field(3, ge=1, description="number of adversaries")
    num_obstacles: int = Field(2, ge=0, description="number of obstacles")
    terminate_on_success: bool = Field(False, description="end the episode when every prey is being touched")


class SimpleTagWorlds(ParticleWorlds):
    """Adversaries, then prey, then obstacles."""

    def __init__(
        self, settings: SimpleTagSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        self._options = settings
        num_agents, hunters = layout.num_agents, settings.num_adversaries
        seen = np.hstack([np.tile(layout.landmark_rows(), (num_agents, 1)), layout.others()])
        self._geometry = self.see(seen)
        self.collide(self._geometry, seen, slice(None))
        first_other = settings.num_obstacles
        self._catch_distance = self._geometry.distance[hunters:, first_other : first_other + hunters]
        self._others = self.xp.from_host(layout.others().reshape(-1))
        self._other_velocity = self.xp.zeros((2, num_agents, num_agents - 1, num_worlds), self.dtype)
        self._hunter_reward, self._prey_reward = (self.xp.permute(r, (1, 0)) for r in self.rewards.values())
        self._sights = [_Sight(self, name, settings) for name in groups]

    def update_geometry(self) -> None:
        self._geometry.update(self.position)

    def reward(self) -> None:
        xp, hunters = self.xp, self._options.num_adversaries
        touches = xp.less(self._catch_distance, ADVERSARY_SIZE + PREY_SIZE)  # [prey, adversary, B]
        caught_by = xp.count(touches, 1)
        total = caught_by.sum(0)
        xp.copy(self._hunter_reward, xp.cast(total[None] * CATCH_REWARD, self.dtype))
        outside = leaving_cost(xp, self.position[:, hunters : self.layout.num_agents])
        xp.copy(self._prey_reward, xp.cast(caught_by * -CATCH_REWARD, self.dtype) - outside)
        if self._options.terminate_on_success:
            xp.logical_not(xp.any_along(xp.equal(caught_by, 0), 0), out=self.terminated)

    def write_observations(self) -> None:
        flat = self._other_velocity.reshape(2, -1, self.num_worlds)
        self.xp.take(self.velocity, self._others, 1, flat)
        for sight in self._sights:
            sight.write_observations(self._geometry.offset, self._geometry.distance, self._other_velocity)


class _Sight:
    """What one group sees: its rows of the arrays, its columns of the observations."""

    def __init__(self, worlds: SimpleTagWorlds, group: str, settings: SimpleTagSettings) -> None:
        self._worlds, self._rows, self._settings = worlds, worlds.rows[group], settings
        num_others, hunters = worlds.layout.num_agents - 1, settings.num_adversaries
        is_hunter = self._rows.start == 0
        self._prey_slots = slice(hunters - 1 if is_hunter else hunters, num_others)
        columns = ObservationColumns(worlds.xp, worlds.observations[group])
        self._velocity_columns = columns.vector()
        self._position_columns = columns.vector()
        self._landmark_columns = columns.vectors(settings.num_landmark_neighbors or settings.num_obstacles)
        self._agent_columns = columns.vectors(settings.num_agent_neighbors or num_others)
        num_prey = self._prey_slots.stop - self._prey_slots.start
        self._prey_columns = columns.vectors(settings.num_agent_neighbors or num_prey)

    def write_observations(self, offset: XArray, distance: XArray, other_velocity: XArray) -> None:
        xp, rows, settings = self._worlds.xp, self._rows, self._settings
        obstacles, others = slice(0, settings.num_obstacles), slice(settings.num_obstacles, None)
        xp.copy_envs_first(self._velocity_columns, self._worlds.velocity[:, rows])
        xp.copy_envs_first(self._position_columns, self._worlds.position[:, rows])
        limit = settings.num_landmark_neighbors
        write_nearest(xp, self._landmark_columns, offset[:, rows, obstacles], distance[rows, obstacles], limit)
        limit = settings.num_agent_neighbors
        near = distance[rows, others]
        write_nearest(xp, self._agent_columns, offset[:, rows, others], near, limit)
        if limit is None:
            xp.copy_envs_first(self._prey_columns, other_velocity[:, rows, self._prey_slots])
        else:
            other_velocity[:, rows, : self._prey_slots.start] = 0.0  # adversaries' velocities are hidden
            write_nearest(xp, self._prey_columns, other_velocity[:, rows], near, limit)


def leaving_cost(xp: ArrayNamespace, position: XArray) -> XArray:
    """[N, B] Σ over x and y of 0 below 0.9, 10 (|x| − 0.9) below 1, then min(exp(2|x| − 2), 10); `position` [2, N, B]."""
    far = xp.absolute(position)
    steep = xp.exp((2 * far - 2).clip(-1.0, math.log(10.0)))
    cost = xp.where(xp.less(far, 1.0), (far - 0.9) * 10, steep) * xp.greater_equal(far, 0.9)
    return cost[0] + cost[1]


def blueprint(settings: SimpleTagSettings) -> Blueprint:
    """`native:simple_tag` with these settings."""
    hunters = [
        AgentBody(f"adversary_{n}", ADVERSARY_SIZE, RED, acceleration=3.0, max_speed=1.0)
        for n in range(settings.num_adversaries)
    ]
    prey = [
        AgentBody(f"agent_{n}", PREY_SIZE, GREEN, acceleration=4.0, max_speed=1.3) for n in range(settings.num_good)
    ]
    obstacles = [LandmarkBody(OBSTACLE_SIZE, INK)] * settings.num_obstacles
    layout = Layout([*hunters, *prey], obstacles, landmark_bound=0.9)
    num_others = layout.num_agents - 1
    common = 4 + 2 * (settings.num_landmark_neighbors or settings.num_obstacles)
    common += 2 * (settings.num_agent_neighbors or num_others)
    hunter_size = common + 2 * (settings.num_agent_neighbors or settings.num_good)
    prey_size = common + 2 * (settings.num_agent_neighbors or settings.num_good - 1)
    return particle_blueprint(
        "simple_tag",
        settings,
        layout,
        [hunter_size] * len(hunters) + [prey_size] * len(prey),
        lambda groups, num_worlds: SimpleTagWorlds(settings, layout, groups, num_worlds),
        may_terminate=settings.terminate_on_success,
    )
