"""soccer: two teams, one ball. A goal ends the episode: +1 for every player of the team that scored, −1 for the others.

Players are discs that step in one of four directions. Who touches the ball kicks it away from itself; kicks of several add up.
The ball slows down, and bounces off the walls beside the goals, which are the middle of the short sides. Nobody wins an episode
that reaches its limit.

Observation, as if one's own goal were the left one: own position; the ball relative to it, and how it moves; teammates, then
opponents, relative, in the order of their numbers. Actions: stay, up, down, back, forward.
Agents are called as ML-Agents' behaviours are, `player_0?team=0`, which says who plays together.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from gymnasium import spaces
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint, Worlds
from relayrl.envs.native.rasteriser import BLUE, INK, RED, SAND, Canvas

GROUP = "player"
HALF_WIDTH, HALF_HEIGHT, HALF_GOAL = 1.0, 0.6, 0.4
PLAYER_SPEED, KICK_SPEED, TOUCH, SLOWING = 0.08, 0.15, 0.15, 0.95
_MOVES = np.array([[0, 0, 0, -1, 1], [0, 1, -1, 0, 0]])  # [2, A]


class SoccerSettings(NativeSettings):
    """Options of `native:soccer`."""

    players: int = Field(2, ge=1, description="players of each team")
    max_episode_steps: int = Field(150, ge=1, description="steps after which an episode is a draw")


class SoccerWorlds(Worlds):
    """`position` [2, N, B] of the players, those of the left team first; `ball` and `velocity` [2, B]."""

    def __init__(self, settings: SoccerSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        self._xp, self._dtype = xp, settings.dtype
        self._size, n = settings.players, 2 * settings.players
        self.position = xp.zeros((2, n, num_worlds), settings.dtype)
        self.ball, self.velocity = (xp.zeros((2, num_worlds), settings.dtype) for _ in range(2))
        self.state = {"position": self.position, "ball": self.ball, "velocity": self.velocity}
        self.observations = {GROUP: xp.zeros((num_worlds, n, _observation_size(settings)), settings.dtype)}
        self.rewards = {GROUP: xp.zeros((num_worlds, n), settings.dtype)}
        self.terminated = xp.zeros((num_worlds,), "bool")
        self._columns = xp.permute(self.observations[GROUP], (2, 1, 0))  # [O, N, B]
        self._facing = np.where(np.arange(n) < self._size, 1, -1).tolist()
        moves = _MOVES[:, None, :] * np.stack([self._facing, np.ones(n, int)])[:, :, None]  # [2, N, A]
        self._moves = xp.from_host((PLAYER_SPEED * moves).astype(settings.dtype))

    def begin(self, draws: XArray) -> None:
        n = len(self._facing)
        for player, facing in enumerate(self._facing):
            self.position[0, player] = -facing * (0.2 + 0.7 * draws[player]) * HALF_WIDTH
            self.position[1, player] = (2 * draws[n + player] - 1) * HALF_HEIGHT
        self.ball[0], self.ball[1] = 0.0, (2 * draws[2 * n] - 1) * 0.5 * HALF_HEIGHT
        self.velocity[...] = 0.0
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp = self._xp
        for player in range(len(self._facing)):
            self.position[:, player] += self._moves[:, player, actions[GROUP][:, player]]
        xp.clip(self.position[0], -HALF_WIDTH, HALF_WIDTH, self.position[0])
        xp.clip(self.position[1], -HALF_HEIGHT, HALF_HEIGHT, self.position[1])
        self._kick()
        self.ball += self.velocity
        self.velocity *= SLOWING
        is_goal = (xp.absolute(self.ball[0]) > HALF_WIDTH) & (xp.absolute(self.ball[1]) < HALF_GOAL)
        won = xp.where(self.ball[0] > 0, 0 * self.ball[0] + 1, 0 * self.ball[0] - 1) * xp.cast(is_goal, self._dtype)
        for axis, edge in enumerate((HALF_WIDTH, HALF_HEIGHT)):
            self._bounce(axis, edge, is_goal)
        for player, facing in enumerate(self._facing):
            self.rewards[GROUP][:, player] = facing * won
        xp.copy(self.terminated, is_goal)
        self.observe()

    def _kick(self) -> None:
        """Whoever touches the ball sends it away from itself."""
        xp = self._xp
        offset = self.ball[:, None] - self.position  # [2, N, B]
        distance = xp.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
        touches = distance < TOUCH
        push = xp.cast(touches, self._dtype) * KICK_SPEED / (distance + 1e-6)
        kick = 0 * self.velocity
        for player in range(len(self._facing)):
            kick += offset[:, player] * push[player]
        xp.copy_where(self.velocity, kick, xp.any_along(touches, 0))

    def _bounce(self, axis: int, edge: float, is_goal: XArray) -> None:
        xp, along = self._xp, self.ball[axis]
        is_out = (xp.absolute(along) > edge) & ~is_goal
        back = xp.where(along > 0, 2 * edge - along, -2 * edge - along)
        xp.copy_where(self.velocity[axis], -self.velocity[axis], is_out)
        xp.copy_where(along, back, is_out)

    def observe(self) -> None:
        columns, n = self._columns, len(self._facing)
        for player, facing in enumerate(self._facing):
            own = range(self._size) if facing > 0 else range(self._size, n)
            rest = [other for other in range(n) if other not in own]
            x, y = self.position[0, player], self.position[1, player]
            columns[0, player], columns[1, player] = facing * x, y
            columns[2, player], columns[3, player] = facing * (self.ball[0] - x), self.ball[1] - y
            columns[4, player], columns[5, player] = (
                facing * self.velocity[0] / KICK_SPEED,
                self.velocity[1] / KICK_SPEED,
            )
            for i, other in enumerate([*(mate for mate in own if mate != player), *rest]):
                columns[6 + 2 * i, player] = facing * (self.position[0, other] - x)
                columns[7 + 2 * i, player] = self.position[1, other] - y

    def draw(self, state: Mapping[str, Array]) -> Array:
        canvas = Canvas(width=440, height=264, x_range=(-1.1, 1.1), y_bottom=-0.66)
        for side in (-1.05, 1.05):
            canvas.box((side, 0.0), (0.1, 2 * HALF_GOAL), 0.0, SAND)
        for cell, facing in zip(state["position"].T, self._facing, strict=True):
            canvas.disc((float(cell[0]), float(cell[1])), 0.06, RED if facing > 0 else BLUE, outline=INK)
        canvas.disc((float(state["ball"][0]), float(state["ball"][1])), 0.04, INK)
        return canvas.pixels()


def _observation_size(settings: SoccerSettings) -> int:
    return 6 + 2 * (2 * settings.players - 1)


def blueprint(settings: SoccerSettings) -> Blueprint:
    """`native:soccer` with these settings."""
    xp, n = namespace_of(settings.device), 2 * settings.players
    agents = tuple(f"player_{player}?team={player // settings.players}" for player in range(n))
    # Kicks of all players at once add up.
    seen = spaces.Box(-float(n) - 2.0, float(n) + 2.0, (_observation_size(settings),), np.float32)
    return Blueprint(
        name="soccer",
        groups={GROUP: AgentGroup(GROUP, agents, seen, spaces.Discrete(len(_MOVES[0])))},
        max_episode_steps=settings.max_episode_steps,
        num_draws=2 * n + 1,
        build=partial(SoccerWorlds, settings, xp),
        xp=xp,
    )
