"""rooms: walk through a chain of rooms, each behind a closed door, to a goal in the last one. Only the goal is rewarded.

After MiniGrid's `MultiRoom` (Chevalier-Boisvert et al., 2023), with rooms in a row and coordinates instead of a picture. Rooms
are `S × S` cells; between two of them is a wall with one door, in a row that is drawn for every episode, as are the first cell
and the goal's row:

    . . . # . . .      S = 3, two rooms: x = 0 … 6, the wall at x = 3
    . a . D . . .      a: the agent, D: the door, G: the goal, in the last column
    . . . # . . G

A step goes to a neighbouring cell, or opens the door that is east of the agent. Walls and closed doors stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from gymnasium import spaces
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import SINGLE_AGENT
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.classic.single_agent import SingleAgentWorlds, single_agent_group
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import BLUE, GREEN, GREY, PALE, SAND, Canvas

MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0), (0, 0))
"""North, south, west, east; the fifth action opens a door."""
OPEN = 4
STEPS_PER_ROOM = 20


class RoomsSettings(NativeSettings):
    """Options of `native:rooms`."""

    num_rooms: int = Field(4, ge=1, le=64, description="rooms in the chain; the goal is in the last one")
    room_size: int = Field(5, ge=2, le=64, description="cells of a room along each side")
    max_episode_steps: int | None = Field(
        None, ge=1, description="steps after which an episode is truncated; none: 20 for every room"
    )


class RoomsWorlds(SingleAgentWorlds):
    """State `cell` `[2, B]`: x and y; `exits` `[R, B]`: rows of the doors, the last that of the goal; `is_open` `[R, B]`.

    Observed are x and y in −1 … 1, how far east and how far north the exit of the room is, in sides of a room, and whether it
    is open. The goal is in the cell west of where the last exit would be. Where episodes have fewer rooms than the chain has,
    x is still that of the whole chain.
    """

    def __init__(self, settings: RoomsSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(xp, settings.dtype, num_worlds, observation_size=5)
        self._num_rooms, self._size = settings.num_rooms, settings.room_size
        self._last_x = self._num_rooms * (self._size + 1) - 2
        self._count = xp.from_host(np.full(num_worlds, self._num_rooms, np.int64))  # at most `_num_rooms`
        self.parameters = {"num_rooms": self._count}
        self._cell = xp.zeros((2, num_worlds), "int64")
        self._exits = xp.zeros((self._num_rooms, num_worlds), "int64")
        self._is_open = xp.zeros((self._num_rooms, num_worlds), "bool")
        self.state = {"cell": self._cell, "exits": self._exits, "is_open": self._is_open}
        self._moves = xp.from_host(np.array(MOVES, np.int64).T.copy())
        self._rooms = xp.from_host(np.arange(self._num_rooms)[:, None])
        self._one, self._most = (xp.from_host(np.array(number, np.int64)) for number in (1, self._num_rooms))

    def begin(self, draws: XArray) -> None:
        drawn = self.xp.cast(draws * self._size, "int64")
        self._cell[...] = drawn[:2]
        self._exits[...] = drawn[2:]
        self._is_open[...] = False
        self._count[...] = self.xp.maximum(self._count, self._one)
        self.xp.copy_where(self._count, self._most, self._count > self._most)
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp, action, wall = self.xp, actions[SINGLE_AGENT][:, 0], self._size
        move, (x, y) = self._moves[:, action], self._cell
        next_x, next_y = x + move[0], y + move[1]
        exit_row, _ = self._exit(x)
        is_at_door = (x % (wall + 1) == wall - 1) & (y == exit_row)
        opens = is_at_door & (action == OPEN)
        door_row, is_door_open = self._exit(next_x)  # west of a room is the exit of the room before it
        in_doorway = (x % (wall + 1) == wall) & (next_y != y)
        into_wall = (next_x % (wall + 1) == wall) & ((next_y != door_row) | ~is_door_open)
        last_x = self._count * (wall + 1) - 2
        outside = (next_x < 0) | (next_x > last_x) | (next_y < 0) | (next_y >= self._size)
        blocked = outside | into_wall | in_doorway
        self._is_open[...] = self._is_open | (self._here(x) & opens)
        self._cell[0] = xp.where(blocked, x, next_x)
        self._cell[1] = xp.where(blocked, y, next_y)
        goal_row, _ = self._exit(last_x)
        xp.copy(self.terminated, (self._cell[0] == last_x) & (self._cell[1] == goal_row))
        xp.copy(self.rewards[SINGLE_AGENT][:, 0], xp.cast(self.terminated, self.dtype))
        self.observe()

    def observe(self) -> None:
        x, y = self._cell
        exit_row, is_open = self._exit(x)
        last_y = self._size - 1
        columns = self.observation_columns
        columns[0] = 2 * self.xp.cast(x, self.dtype) / self._last_x - 1
        columns[1] = 2 * self.xp.cast(y, self.dtype) / last_y - 1
        columns[2] = self.xp.cast(self._size - x % (self._size + 1), self.dtype) / self._size
        columns[3] = self.xp.cast(exit_row - y, self.dtype) / last_y
        columns[4] = self.xp.cast(is_open, self.dtype)

    def _here(self, x: XArray) -> XArray:
        """[R, B] which room, its eastern wall included, a column belongs to."""
        return self._rooms == x // (self._size + 1)

    def _exit(self, x: XArray) -> tuple[XArray, XArray]:
        """[B] the row of the exit of the room in column x, and whether it is open."""
        here = self._here(x)
        return (self._exits * here).sum(0), self.xp.any_along(self._is_open & here, 0)

    def draw(self, state: Mapping[str, Array]) -> Array:
        size, last_x = self._size, self._last_x
        canvas = Canvas(width=20 * (last_x + 1), height=20 * size, x_range=(-0.5, last_x + 0.5), y_bottom=-0.5)
        num_rooms = int(state["num_rooms"])
        for room in range(num_rooms):
            exit_row = float(state["exits"][room])
            if room == num_rooms - 1:
                canvas.box((num_rooms * (size + 1) - 2, exit_row), (0.9, 0.9), 0.0, GREEN)
                continue
            wall = room * (size + 1) + size
            canvas.box((wall, (size - 1) / 2), (1.0, size), 0.0, GREY)
            canvas.box((wall, exit_row), (0.9, 0.9), 0.0, PALE if state["is_open"][room] else SAND)
        canvas.disc((float(state["cell"][0]), float(state["cell"][1])), 0.35, BLUE)
        return canvas.pixels()


def blueprint(settings: RoomsSettings) -> Blueprint:
    """`native:rooms` with these settings."""
    xp = namespace_of(settings.device)
    high = np.ones(5, np.float32)
    return Blueprint(
        name="rooms",
        groups=single_agent_group(
            spaces.Box(np.array([-1, -1, 0, -1, 0], np.float32), high, dtype=np.float32), spaces.Discrete(len(MOVES))
        ),
        max_episode_steps=settings.max_episode_steps or STEPS_PER_ROOM * settings.num_rooms,
        num_draws=2 + settings.num_rooms,
        build=partial(RoomsWorlds, settings, xp),
        xp=xp,
    )
