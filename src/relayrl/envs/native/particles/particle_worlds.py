"""Many particle worlds as arrays: bodies, motion, messages. What agents see and earn is each scenario's own file.

One step: actions become forces and messages; bodies that touch push each other; positions move with the old velocities,
velocities are damped and pushed; then everybody looks around.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import XArray, namespace_of
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.native_settings import ParticleSettings
from relayrl.envs.native.native_worlds import Worlds
from relayrl.envs.native.particles.controls import GroupControls
from relayrl.envs.native.particles.drawing import draw_particles
from relayrl.envs.native.particles.geometry import Contacts, Geometry
from relayrl.envs.native.particles.layout import Layout
from relayrl.envs.native.rasteriser import Colour

STEP_S = 0.1
DAMPING = 0.25


class ParticleWorlds(Worlds):
    """State: `position` `[2, E, B]`, `velocity` `[2, N, B]`, `message` `[C, S, B]` of those who speak, `choice` `[G, B]`.

    A subclass says what is seen (`seen`), binds its observation columns, and computes rewards.
    """

    def __init__(
        self, settings: ParticleSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        self.xp = xp = namespace_of(settings.device)
        self.dtype = dtype = settings.dtype
        self.layout, self.groups, self.num_worlds = layout, groups, num_worlds
        self._settings = settings
        self.position = xp.zeros((2, layout.num_bodies, num_worlds), dtype)
        self.velocity = xp.zeros((2, layout.num_agents, num_worlds), dtype)
        num_speakers = sum(agent.speaks for agent in layout.agents)
        self.message = xp.zeros((layout.message_size, num_speakers, num_worlds), dtype)
        self.choice = xp.zeros((len(layout.choices), num_worlds), "int64")
        optional = {
            "message": self.message if num_speakers else None,
            "choice": self.choice if layout.choices else None,
        }
        self.state = {"position": self.position, "velocity": self.velocity}
        self.state |= {name: array for name, array in optional.items() if array is not None}
        self.rows = _rows_of(layout, groups)
        self.observations, self.rewards = {}, {}
        for name, group in groups.items():
            shape = (num_worlds, group.num_agents)
            self.observations[name] = xp.zeros((*shape, *(group.observation_space.shape or ())), dtype)
            self.rewards[name] = xp.zeros(shape, dtype)
        self.terminated = xp.zeros((num_worlds,), "bool")
        self._prepare_motion()
        self._prepare_controls()

    def see(self, seen: Array, observers: slice = slice(None)) -> Geometry:
        """Let `observers` (agents) see the bodies `seen` [N, K] from now on."""
        agents = slice(*observers.indices(self.layout.num_agents))
        geometry = Geometry(self.xp, self.dtype, agents, seen, self.num_worlds)
        self.derived = {**self.derived, "offset": geometry.offset, "distance": geometry.distance}
        return geometry

    def collide(self, geometry: Geometry, seen: Array, columns: slice) -> None:
        """Let all agents bump into the bodies in these columns of what they see."""
        reach = self.layout.reach(np.arange(self.layout.num_agents), seen[:, columns])
        self._contacts: Contacts | None = Contacts(self.xp, self.dtype, reach, self.num_worlds)
        self._touching = geometry, columns

    @abstractmethod
    def update_geometry(self) -> None:
        """Bring what follows from the state up to date, after bodies have moved."""

    @abstractmethod
    def reward(self) -> None:
        """Rewards of the step just made, and `terminated` where the scenario has an end."""

    @abstractmethod
    def write_observations(self) -> None:
        """Write the observation columns that change within an episode."""

    def write_fixed_observations(self) -> None:
        """Write the observation columns that stay the same for an episode, such as the colour of the goal."""

    def begin(self, draws: XArray) -> None:
        xp, layout = self.xp, self.layout
        num_choices = len(layout.choices)
        if num_choices:
            among = xp.table(np.array(layout.choices, np.float64)[:, None])
            self.choice[...] = xp.cast(xp.floor(draws[:num_choices] * among), "int64")
        places = 2 * draws[num_choices:].reshape(layout.num_bodies, 2, -1) - 1
        places[layout.num_agents :] *= layout.landmark_bound
        self.position[...] = xp.permute(places, (1, 0, 2))
        self.velocity[...] = 0.0
        self.message[...] = 0.0
        self.observe()

    def observe(self) -> None:
        self.update_geometry()
        self.write_fixed_observations()
        self.write_observations()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        for name, controls in self._controls.items():
            controls.apply(actions[name])
        self._move()
        self.update_geometry()
        self.reward()
        self.write_observations()

    def draw(self, state: Mapping[str, Array]) -> Array:
        return draw_particles(self.layout, state, self.colours(state), zoom_bodies=self._settings.dynamic_rescaling)

    def colours(self, state: Mapping[str, Array]) -> list[Colour]:
        """The bodies' colours in a picture of one world; scenarios with hidden choices show them here."""
        return [body.colour for body in self.layout.bodies]

    def chosen_landmarks(self, choice: XArray) -> XArray:
        """[2, G, B] positions of the landmarks that `choice` [G, B] names."""
        return self.xp.take_along(self.position[:, self.layout.num_agents :], choice[None], 1)

    def _prepare_motion(self) -> None:
        xp, layout = self.xp, self.layout
        movers = [n for n, agent in enumerate(layout.agents) if agent.moves]
        self._movers = slice(movers[0], movers[-1] + 1) if movers else slice(0, 0)
        self._contacts = None
        shape = (2, len(movers), self.num_worlds)
        self._force, self._work = xp.zeros(shape, self.dtype), xp.zeros(shape, self.dtype)
        limits = np.array([layout.agents[n].max_speed or np.inf for n in movers])
        self._max_speed = xp.from_host(limits[:, None].astype(self.dtype)) if np.isfinite(limits).any() else None
        self._kernels = step_kernels(xp, self.dtype)

    def _prepare_controls(self) -> None:
        layout = self.layout
        speakers = [n for n, agent in enumerate(layout.agents) if agent.speaks]
        self._controls = {}
        for name, rows in self.rows.items():
            body = layout.agents[rows.start]
            first = rows.start - self._movers.start
            first_word = speakers.index(rows.start) if body.speaks else 0
            num_agents = rows.stop - rows.start
            self._controls[name] = GroupControls(
                self.xp,
                self.dtype,
                self.groups[name],
                body,
                self._force[:, first : first + num_agents] if body.moves else self._force,
                self.message[:, first_word : first_word + num_agents] if body.speaks else None,
                continuous=self._settings.continuous_actions,
            )

    def _move(self) -> None:
        xp, force, work = self.xp, self._force, self._work
        if not force.shape[1]:
            return
        if self._contacts is not None:
            self._contacts.force(*self._touching, out=work)
        if self._kernels is not None and self._max_speed is None:
            sizes = force.shape[1], self.num_worlds, self.layout.num_bodies, self.layout.num_agents, self._movers.start
            push = None if self._contacts is None else work
            self._kernels.move_bodies(*sizes, self.position, self.velocity, force, push, STEP_S, 1 - DAMPING)
            return
        if self._contacts is not None:
            xp.add(force, work, out=force)
        position, velocity = self.position[:, self._movers], self.velocity[:, self._movers]
        xp.multiply(velocity, STEP_S, out=work)
        xp.add(position, work, out=position)  # x += v dt
        xp.multiply(velocity, 1 - DAMPING, out=velocity)
        xp.multiply(force, STEP_S, out=force)
        xp.add(velocity, force, out=velocity)  # v ← (1 − damping) v + F dt; all masses are 1
        if self._max_speed is not None:
            xp.square(velocity, out=work)
            speed, limit = work[0], work[1]
            xp.add(speed, limit, out=speed)
            xp.sqrt(speed, out=speed)
            xp.maximum(speed, self._max_speed, out=speed)
            xp.divide(self._max_speed, speed, out=limit)
            xp.multiply(velocity, limit, out=velocity)  # v ← v max / |v| where |v| > max


def _rows_of(layout: Layout, groups: Mapping[str, AgentGroup]) -> dict[str, slice]:
    """Which agents, counted in the world's order, a group consists of; groups are contiguous."""
    names = [agent.name for agent in layout.agents]
    return {
        name: slice(names.index(group.agent_ids[0]), names.index(group.agent_ids[-1]) + 1)
        for name, group in groups.items()
    }
