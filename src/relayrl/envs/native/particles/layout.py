"""What a particle world consists of: its agents and landmarks, their sizes and abilities, and the spaces that follow.

Constants only; arrays are `particle_worlds`'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space
from relayrl.envs.agent_groups import group_agents
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import namespace_of
from relayrl.envs.native.native_settings import ParticleSettings
from relayrl.envs.native.native_worlds import Blueprint, Worlds
from relayrl.envs.native.rasteriser import INK, Colour

NUM_MOVES = 5
"""Stay, left, right, down, up."""


@dataclass(frozen=True)
class AgentBody:
    """One agent's body."""

    name: str
    size: float = 0.05
    colour: Colour = INK
    acceleration: float = 5.0
    max_speed: float | None = None
    moves: bool = True
    speaks: bool = False


@dataclass(frozen=True)
class LandmarkBody:
    """Something that stands still."""

    size: float = 0.05
    colour: Colour = INK
    soft_edge: bool = False
    """Drawn see-through: agents can be inside."""


@dataclass(frozen=True)
class Layout:
    """All bodies of a world, agents first, and what is drawn by lot when an episode begins."""

    agents: Sequence[AgentBody]
    landmarks: Sequence[LandmarkBody]
    message_size: int = 0
    """C: how many numbers an agent that speaks says."""
    choices: Sequence[int] = ()
    """For every hidden choice of an episode (which landmark is the goal, …), among how many it is made."""
    landmark_bound: float = 1.0
    """Landmarks begin in [−bound, bound]²; agents in [−1, 1]²."""

    @property
    def bodies(self) -> tuple[AgentBody | LandmarkBody, ...]:
        """Agents, then landmarks."""
        return (*self.agents, *self.landmarks)

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.agents)

    @property
    def num_bodies(self) -> int:
        """E."""
        return len(self.agents) + len(self.landmarks)

    @property
    def num_draws(self) -> int:
        return len(self.choices) + 2 * self.num_bodies

    def others(self) -> Array:
        """[N, N − 1] for each agent the other agents, in order."""
        every = np.arange(self.num_agents)
        return np.stack([every[every != agent] for agent in every])

    def landmark_rows(self) -> Array:
        """[L] the landmarks' numbers among all bodies."""
        return np.arange(self.num_agents, self.num_bodies)

    def reach(self, observers: Array, seen: Array) -> Array:
        """[N, K] at which distance each observer touches each body that it sees (`seen` [N, K])."""
        sizes = np.array([body.size for body in self.bodies])
        return np.asarray(sizes[observers][:, None] + sizes[seen])

    def action_space(self, agent: AgentBody, continuous: bool) -> Space:
        """Moves and words side by side where continuous, their product where discrete."""
        words = self.message_size if agent.speaks else 0
        if continuous:
            return spaces.Box(0.0, 1.0, ((NUM_MOVES if agent.moves else 0) + words,))
        return spaces.Discrete((NUM_MOVES if agent.moves else 1) * (words if agent.speaks else 1))


def particle_blueprint(
    name: str,
    settings: ParticleSettings,
    layout: Layout,
    observation_sizes: Sequence[int],
    build: Callable[[Mapping[str, AgentGroup], int], Worlds],
    *,
    may_terminate: bool = False,
) -> Blueprint:
    """The blueprint of a particle world whose agent `n` sees `observation_sizes[n]` numbers."""
    names = [agent.name for agent in layout.agents]
    observation_spaces = dict(zip(names, (_unbounded(size) for size in observation_sizes), strict=True))
    action_spaces = {agent.name: layout.action_space(agent, settings.continuous_actions) for agent in layout.agents}
    groups = group_agents(names, observation_spaces, action_spaces)
    return Blueprint(
        name=name,
        groups=groups,
        max_episode_steps=settings.max_cycles,
        limit_option="max_cycles",
        num_draws=layout.num_draws,
        build=lambda num_worlds: build(groups, num_worlds),
        xp=namespace_of(settings.device),
        state_space=_unbounded(sum(observation_sizes)),
        truncation_hides_termination=may_terminate,
    )


def _unbounded(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
