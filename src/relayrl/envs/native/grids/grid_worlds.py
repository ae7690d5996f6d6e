"""What the grids have in common: cells, agents that step to a neighbouring one, and who of them is alive.

Agents may share a cell; who would leave the grid stays. The team is paid 1 when its task is done, which every agent gets that
is in the episode then. With `absorbing`, who has gone stays in the episode, sees zeros and moves no more (the "absorbing
states" of Cohen et al., 2021), so that algorithms that cut an agent's return at its end can be compared.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np
from gymnasium import spaces
from pydantic import Field, model_validator

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint, Worlds
from relayrl.envs.native.rasteriser import INK, PALE, Canvas, Colour

GROUP = "agent"
_MOVES = np.array([[0, 0, 0, -1, 1], [0, 1, -1, 0, 0]])  # [2, A]: stay, up, down, left, right
PIXELS_PER_CELL = 60


class GridSettings(NativeSettings):
    """Options of all grids."""

    num_agents: int = Field(3, ge=2, description="agents of the team")
    size: int = Field(5, ge=3, description="cells along an edge of the grid")
    max_episode_steps: int = Field(40, ge=1, description="steps after which an episode is truncated")
    absorbing: bool = Field(False, description="agents that have gone stay, see zeros and cannot act")

    @model_validator(mode="after")
    def _require_room(self) -> Self:
        if self.num_agents + 2 > self.size**2:
            raise ValueError(f"{self.num_agents} agents do not fit into {self.size}² cells; use a larger size")
        return self


class GridWorlds(Worlds):
    """`position` [2, N, B] of the agents and `alive` [N, B]; a subclass adds `state`, `play()` and what is seen."""

    def __init__(self, settings: GridSettings, xp: ArrayNamespace, num_worlds: int, observation_size: int) -> None:
        self.xp, self.options = xp, settings
        n = settings.num_agents
        self.position = xp.zeros((2, n, num_worlds), "int64")
        self.is_alive = xp.zeros((n, num_worlds), "bool")
        observation = xp.zeros((num_worlds, n, observation_size), settings.dtype)
        self.columns = xp.permute(observation, (2, 1, 0))
        """[O, N, B] view of the observations."""
        self.observations = {GROUP: observation}
        self.rewards = {GROUP: xp.zeros((num_worlds, n), settings.dtype)}
        self.terminated = xp.zeros((num_worlds,), "bool")
        if not settings.absorbing:
            self.alive = {GROUP: xp.permute(self.is_alive, (1, 0))}
        self._moves = xp.from_host(_MOVES)

    def advance(self, actions: Mapping[str, XArray]) -> None:
        moves = self.xp.permute(self._moves[:, actions[GROUP]], (0, 2, 1))
        self.xp.clip(self.position + moves * self.is_alive, 0, self.options.size - 1, self.position)
        is_done = self.play()
        paid = is_done[:, None] if self.options.absorbing else self.xp.permute(is_done & self.is_alive, (1, 0))
        self.xp.copy(self.rewards[GROUP], paid)
        self.xp.copy(self.terminated, is_done | ~self.xp.any_along(self.is_alive, 0))
        self.observe()

    @abstractmethod
    def play(self) -> XArray:
        """Let the agents do what they came for; gives [B] bool whether the team's task is done."""

    def cells(self, draws: XArray) -> tuple[XArray, XArray]:
        """x and y [S², B] of all cells of the grid in random order, from a uniform number for each."""
        cell = self.xp.argsort(draws, 0)
        return cell % self.options.size, cell // self.options.size

    def is_at(self, cell: XArray) -> XArray:
        """[N, B] bool who stands on a cell [2, B] of each world."""
        return (self.position[0] == cell[0]) & (self.position[1] == cell[1])

    def hide_from_the_gone(self) -> None:
        """Show zeros to absorbed agents; others see when they go what they went for."""
        if self.options.absorbing:
            self.xp.multiply(self.columns, self.is_alive, out=self.columns)

    def scaled(self, cells: XArray) -> XArray:
        """Positions of cells, or differences of them, in units of the grid."""
        return cells / (self.options.size - 1)

    def canvas(self) -> Canvas:
        """An empty grid; the centre of a cell is at its coordinates."""
        size = self.options.size
        canvas = Canvas(
            width=size * PIXELS_PER_CELL, height=size * PIXELS_PER_CELL, x_range=(-0.5, size - 0.5), y_bottom=-0.5
        )
        for line in range(1, size):
            canvas.line((line - 0.5, -0.5), (line - 0.5, size - 0.5), 0.01, PALE)
            canvas.line((-0.5, line - 0.5), (size - 0.5, line - 0.5), 0.01, PALE)
        return canvas

    def draw_agent(self, canvas: Canvas, cell: Array, n: int, fill: Colour) -> None:
        """Agent n in its cell; agents that share one stay visible."""
        angle = 2 * math.pi * n / self.options.num_agents
        centre = float(cell[0]) + 0.2 * math.cos(angle), float(cell[1]) + 0.2 * math.sin(angle)
        canvas.disc(centre, 0.18, fill, outline=INK)


def grid_blueprint(
    name: str, settings: GridSettings, xp: ArrayNamespace, observation_size: int, build: Callable[[int], Worlds]
) -> Blueprint:
    """A grid as an environment; an episode is worth what the team was paid in it, by however many of its agents."""
    agents = tuple(f"agent_{n}" for n in range(settings.num_agents))
    seen = spaces.Box(-1.0, 1.0, (observation_size,), np.float32)
    return Blueprint(
        name=name,
        groups={GROUP: AgentGroup(GROUP, agents, seen, spaces.Discrete(len(_MOVES[0])))},
        max_episode_steps=settings.max_episode_steps,
        num_draws=settings.size**2,
        build=build,
        xp=xp,
        performance_return=team_reward,
    )


def team_reward(rewards: Mapping[str, Sequence[float]]) -> float:
    """What the team was paid: what the agent got that got most of it."""
    return max(float(sum(own)) for own in rewards.values())
