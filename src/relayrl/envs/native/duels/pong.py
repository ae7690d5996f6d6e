"""pong: two paddles and a ball. Who misses it loses the episode, −1, and the other one wins it, +1.

The ball bounces off the walls at y = ±1 and is hit at x = ±1 by a paddle that reaches it; where it hits the paddle decides how
steeply it leaves, and every hit makes it faster. Nobody wins an episode that reaches its limit.

Observation, as if one's own paddle were the left one: where the ball is, how it moves, own paddle, the other one's.
Actions: stay, up, down.
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
from relayrl.envs.native.rasteriser import BLUE, INK, RED, Canvas

GROUP = "player"
PADDLE_SPEED = 0.06
FIRST_SPEED, MAX_SPEED, GAIN = 0.05, 0.16, 1.1
"""Of the ball along x: when it is served, at most, and with every hit."""
MAX_SLOPE = 0.07
"""Of the ball along y, after a hit with the paddle's edge."""


class PongSettings(NativeSettings):
    """Options of `native:pong`."""

    paddle_size: float = Field(0.4, gt=0.0, lt=2.0, description="height of a paddle; the field's is 2")
    max_episode_steps: int = Field(300, ge=1, description="steps after which an episode is a draw")


class PongWorlds(Worlds):
    """`ball`, `velocity` [2, B] and the heights of the paddles [2, B], left and right."""

    def __init__(self, settings: PongSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        self._xp, self._reach = xp, settings.paddle_size / 2
        self.ball, self.velocity, self.paddles = (xp.zeros((2, num_worlds), settings.dtype) for _ in range(3))
        self.state = {"ball": self.ball, "velocity": self.velocity, "paddles": self.paddles}
        self.observations = {GROUP: xp.zeros((num_worlds, 2, 6), settings.dtype)}
        self.rewards = {GROUP: xp.zeros((num_worlds, 2), settings.dtype)}
        self.terminated = xp.zeros((num_worlds,), "bool")
        self._columns = xp.permute(self.observations[GROUP], (2, 1, 0))  # [6, 2, B]
        self._dtype = settings.dtype

    def begin(self, draws: XArray) -> None:
        direction = self._number(draws[0] < 0.5) * 2 - 1
        self.ball[0], self.ball[1] = 0.0, 1.6 * draws[1] - 0.8
        self.velocity[0], self.velocity[1] = FIRST_SPEED * direction, MAX_SLOPE * (2 * draws[2] - 1)
        self.paddles[...] = 0.0
        self.observe()

    def _number(self, flags: XArray) -> XArray:
        return self._xp.cast(flags, self._dtype)

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp, (x, y), (vx, vy) = self._xp, self.ball, self.velocity
        chosen = xp.permute(actions[GROUP], (1, 0))
        moved = self.paddles + PADDLE_SPEED * (self._number(chosen == 1) - self._number(chosen == 2))
        xp.clip(moved, self._reach - 1, 1 - self._reach, self.paddles)
        x += vx
        y += vy
        bounces = xp.absolute(y) > 1
        y[...] = xp.where(bounces, 2 * _sign(xp, y) - y, y)
        vy[...] = xp.where(bounces, -vy, vy)
        arrives, side = xp.absolute(x) >= 1, _sign(xp, x)
        offset = (y - xp.where(x > 0, self.paddles[1], self.paddles[0])) / self._reach
        is_hit = arrives & (xp.absolute(offset) <= 1)
        x[...] = xp.where(is_hit, 2 * side - x, x)
        faster = GAIN * xp.absolute(vx)
        faster = xp.where(faster > MAX_SPEED, MAX_SPEED + 0 * faster, faster)
        vx[...] = xp.where(is_hit, -side * faster, vx)
        vy[...] = xp.where(is_hit, MAX_SLOPE * offset, vy)
        xp.copy(self.terminated, arrives & ~is_hit)
        won = side * self._number(self.terminated)  # by the left one, where the ball has left on the right
        self.rewards[GROUP][:, 0], self.rewards[GROUP][:, 1] = won, -won
        self.observe()

    def observe(self) -> None:
        columns = self._columns
        for player, facing in enumerate((1, -1)):
            columns[0, player], columns[1, player] = facing * self.ball[0], self.ball[1]
            columns[2, player], columns[3, player] = facing * self.velocity[0] / MAX_SPEED, self.velocity[1] / MAX_SLOPE
            columns[4, player], columns[5, player] = self.paddles[player], self.paddles[1 - player]

    def draw(self, state: Mapping[str, Array]) -> Array:
        canvas = Canvas(width=360, height=300, x_range=(-1.2, 1.2), y_bottom=-1.0)
        for side, height, colour in zip((-1.05, 1.05), state["paddles"], (RED, BLUE), strict=True):
            canvas.box((side, float(height)), (0.06, 2 * self._reach), 0.0, colour)
        canvas.disc((float(state["ball"][0]), float(state["ball"][1])), 0.05, INK)
        return canvas.pixels()


def _sign(xp: ArrayNamespace, numbers: XArray) -> XArray:
    """1 or −1; of 0 it is −1."""
    ones = 0 * numbers + 1
    return xp.where(numbers > 0, ones, -ones)


def blueprint(settings: PongSettings) -> Blueprint:
    """`native:pong` with these settings."""
    xp = namespace_of(settings.device)
    seen = spaces.Box(-2.0, 2.0, (6,), np.float32)
    return Blueprint(
        name="pong",
        groups={GROUP: AgentGroup(GROUP, ("player_0", "player_1"), seen, spaces.Discrete(3))},
        max_episode_steps=settings.max_episode_steps,
        num_draws=3,
        build=partial(PongWorlds, settings, xp),
        xp=xp,
    )
