"""simple_world_comm: the hunt of simple_tag with food for the prey, forests to hide in, and a leader who sees and speaks.

An adversary earns 5 for every touch of any adversary and any prey, and −0.1 times its distance to the nearest prey; a prey −5
for each adversary that touches it, −2 times the cost of leaving the field, 2 for each food that it touches and −0.05 times its
distance to the nearest food. Agents see each other when they share a forest or are both outside; the leader sees all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import XArray
from relayrl.envs.native.native_settings import ParticleSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns
from relayrl.envs.native.particles.particle_worlds import ParticleWorlds
from relayrl.envs.native.particles.scenarios.simple_tag import leaving_cost
from relayrl.envs.native.rasteriser import BLUE, GREEN, INK, RED, Colour

ADVERSARY_SIZE, PREY_SIZE = 0.075, 0.045
OBSTACLE_SIZE, FOOD_SIZE, FOREST_SIZE = 0.2, 0.03, 0.3
LEADER_RED: Colour = (150, 40, 40)


class SimpleWorldCommSettings(ParticleSettings):
    """Options of `native:simple_world_comm`."""

    num_good: int = Field(2, ge=1, description="number of prey")
    num_adversaries: int = Field(4, ge=1, description="number of adversaries, the leader included")
    num_obstacles: int = Field(1, ge=0, description="number of obstacles")
    num_food: int = Field(2, ge=1, description="number of places with food")
    num_forests: int = Field(2, ge=0, description="number of forests")


class SimpleWorldCommWorlds(ParticleWorlds):
    """The leader, other adversaries, prey; then obstacles, food, forests."""

    def __init__(
        self, settings: SimpleWorldCommSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        self._options = settings
        xp, n, hunters = self.xp, layout.num_agents, settings.num_adversaries
        self._seen = seen = self._seen_bodies()
        self._geometry = self.see(seen)
        free = settings.num_food + settings.num_forests
        self.collide(self._geometry, seen, slice(free, None))
        others = layout.others()
        reach = xp.from_host(layout.reach(np.arange(n), seen)[..., None].astype(self.dtype))
        food = slice(0, settings.num_food)
        forests = slice(settings.num_food, free)
        first_other = free + settings.num_obstacles
        distance = self._geometry.distance
        self._food = (distance[hunters:, food], reach[hunters:, food])
        self._forests = (distance[:, forests], reach[:, forests])
        prey_rows = slice(hunters, None)
        self._hunters_of_prey = (
            distance[prey_rows, first_other : first_other + hunters],
            reach[prey_rows, first_other : first_other + hunters],
        )
        self._prey_of_hunters = distance[:hunters, first_other + hunters - 1 :]
        self._to_others = self._geometry.offset[:, :, first_other:]
        self._others = xp.from_host(others.reshape(-1))
        self._other_velocity = xp.zeros((2, n, n - 1, num_worlds), self.dtype)
        self._inside = xp.zeros((n, settings.num_forests, num_worlds), "bool")
        self._leader = xp.from_host((np.arange(n) == 0)[:, None, None])
        self._sights = [_Sight(self, name, settings) for name in groups]

    def update_geometry(self) -> None:
        self._geometry.update(self.position)
        distance, reach = self._forests
        self.xp.less(distance, reach, out=self._inside)

    def reward(self) -> None:
        xp, hunters = self.xp, self._options.num_adversaries
        caught_by = xp.count(xp.less(*self._hunters_of_prey), 1)
        total = caught_by.sum(0)
        nearest_prey = xp.min(self._prey_of_hunters, 1)
        hunter_reward = 5.0 * total[None] - 0.1 * nearest_prey
        food_distance, food_reach = self._food
        outside = leaving_cost(xp, self.position[:, hunters : self.layout.num_agents])
        eaten = xp.count(xp.less(food_distance, food_reach), 1)
        prey_reward = 2.0 * eaten - 5.0 * caught_by - 2.0 * outside - 0.05 * xp.min(food_distance, 1)
        for name, rows in self.rows.items():
            is_prey = rows.start >= hunters
            source = prey_reward[rows.start - hunters : rows.stop - hunters] if is_prey else hunter_reward[rows]
            xp.copy(self.rewards[name], xp.permute(xp.cast(source, self.dtype), (1, 0)))

    def write_observations(self) -> None:
        xp = self.xp
        visible = self._visible()
        xp.take(self.velocity, self._others, 1, self._other_velocity.reshape(2, -1, self.num_worlds))
        xp.multiply(self._other_velocity, visible, out=self._other_velocity)
        to_others = self._to_others * visible
        in_forest = 2.0 * xp.permute(self._inside, (1, 0, 2)) - 1.0
        for sight in self._sights:
            sight.write_observations(self._geometry.offset, to_others, self._other_velocity, in_forest)

    def _visible(self) -> XArray:
        """[N, N − 1, B] whether each agent sees each other one."""
        xp, n = self.xp, self.layout.num_agents
        inside = self._inside
        others_inside = inside[self._others].reshape(n, n - 1, *inside.shape[1:])
        together = xp.any_along(inside[:, None] & others_inside, 2)
        both_outside = ~xp.any_along(inside, 1)[:, None] & ~xp.any_along(others_inside, 2)
        return together | both_outside | self._leader

    def _seen_bodies(self) -> Array:
        """[N, K]: food, forests, obstacles, other agents: what does not collide first."""
        settings, layout = self._options, self.layout
        landmarks = layout.landmark_rows()
        bodies = np.concatenate([landmarks[settings.num_obstacles :], landmarks[: settings.num_obstacles]])
        return np.hstack([np.tile(bodies, (layout.num_agents, 1)), layout.others()])


class _Sight:
    """What one group sees: own velocity and position, landmarks, others; prey then forests and velocities of other prey,
    adversaries velocities of prey, forests and the leader's words."""

    def __init__(self, worlds: SimpleWorldCommWorlds, group: str, settings: SimpleWorldCommSettings) -> None:
        self._worlds, self._rows = worlds, worlds.rows[group]
        hunters, num_others = settings.num_adversaries, worlds.layout.num_agents - 1
        is_hunter = self._rows.start < hunters
        self._prey_slots = slice(hunters - 1 if is_hunter else hunters, num_others)
        self._obstacles = slice(settings.num_food + settings.num_forests, None)
        num_prey = self._prey_slots.stop - self._prey_slots.start
        columns = ObservationColumns(worlds.xp, worlds.observations[group])
        self._velocity_columns, self._position_columns = columns.vector(), columns.vector()
        self._obstacle_columns = columns.vectors(settings.num_obstacles)
        self._free_columns = columns.vectors(settings.num_food + settings.num_forests)
        self._agent_columns = columns.vectors(num_others)
        if is_hunter:
            self._prey_columns = columns.vectors(num_prey)
            self._forest_columns = columns.numbers(settings.num_forests)
            self._heard: XArray | None = columns.numbers(worlds.layout.message_size)
        else:
            self._forest_columns = columns.numbers(settings.num_forests)
            self._prey_columns = columns.vectors(num_prey)
            self._heard = None

    def write_observations(self, offset: XArray, to_others: XArray, other_velocity: XArray, in_forest: XArray) -> None:
        copy, rows = self._worlds.xp.copy_envs_first, self._rows
        num_free, num_obstacles = self._free_columns.shape[2], self._obstacle_columns.shape[2]
        copy(self._velocity_columns, self._worlds.velocity[:, rows])
        copy(self._position_columns, self._worlds.position[:, rows])
        copy(self._free_columns, offset[:, rows, :num_free])
        copy(self._obstacle_columns, offset[:, rows, num_free : num_free + num_obstacles])
        copy(self._agent_columns, to_others[:, rows])
        copy(self._prey_columns, other_velocity[:, rows, self._prey_slots])
        copy(self._forest_columns, in_forest[:, rows])
        if self._heard is not None:
            self._worlds.xp.copy(self._heard, self._worlds.message)


def blueprint(settings: SimpleWorldCommSettings) -> Blueprint:
    """`native:simple_world_comm` with these settings."""
    hunters = [
        AgentBody(name, ADVERSARY_SIZE, colour, acceleration=3.0, max_speed=1.0, speaks=name[0] == "l")
        for name, colour in [
            ("leadadversary_0", LEADER_RED),
            *((f"adversary_{n}", RED) for n in range(settings.num_adversaries - 1)),
        ]
    ]
    prey = [
        AgentBody(f"agent_{n}", PREY_SIZE, GREEN, acceleration=4.0, max_speed=1.3) for n in range(settings.num_good)
    ]
    landmarks = [LandmarkBody(OBSTACLE_SIZE, INK)] * settings.num_obstacles
    landmarks += [LandmarkBody(FOOD_SIZE, BLUE)] * settings.num_food
    landmarks += [LandmarkBody(FOREST_SIZE, GREEN, soft_edge=True)] * settings.num_forests
    layout = Layout([*hunters, *prey], landmarks, message_size=4, landmark_bound=0.9)
    common = 4 + 2 * len(landmarks) + 2 * (layout.num_agents - 1) + settings.num_forests
    return particle_blueprint(
        "simple_world_comm",
        settings,
        layout,
        [common + 2 * len(prey) + 4] * len(hunters) + [common + 2 * (len(prey) - 1)] * len(prey),
        lambda groups, num_worlds: SimpleWorldCommWorlds(settings, layout, groups, num_worlds),
    )
