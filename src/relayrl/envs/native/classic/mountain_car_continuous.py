"""MountainCarContinuous: rock a car with a weak engine out of a valley, with as little force as possible.

Moore 1990, "Efficient memory-based learning for robot control"; the numbers are those of Gymnasium's
`MountainCarContinuous-v0`. The original stores its state in float32 after every step and does all arithmetic but the cosine in
float32, so both dtypes do here; `float64` takes the cosine in double precision and then gives the original's bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import SINGLE_AGENT
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.classic.single_agent import SingleAgentWorlds, single_agent_group
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import GREEN, GREY, INK, PALE, Canvas

MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.45
POWER = 0.0015
GRAVITY = 0.0025
INITIAL_POSITION = (-0.6, -0.4)


class MountainCarContinuousSettings(NativeSettings):
    """Options of `native:MountainCarContinuous`."""

    max_episode_steps: int = Field(999, ge=1, description="steps after which an episode is truncated")
    goal_velocity: float = Field(0.0, description="least velocity at which reaching the flag counts")


class _Constants:
    """Numbers of the equations, in the form that is fastest for small batches."""

    def __init__(self, xp: ArrayNamespace, settings: MountainCarContinuousSettings) -> None:
        def single(value: float) -> Any:
            return xp.constant(value, "float32")

        self.min_force, self.max_force, self.power = single(-1.0), single(1.0), single(POWER)
        self.min_speed, self.max_speed, self.zero = single(-MAX_SPEED), single(MAX_SPEED), single(0.0)
        self.min_position, self.max_position = single(MIN_POSITION), single(MAX_POSITION)
        self.goal_position, self.goal_velocity = single(GOAL_POSITION), single(settings.goal_velocity)
        self.three = single(3.0)
        self.gravity, self.cost = xp.constant(GRAVITY, settings.dtype), xp.constant(0.1, settings.dtype)
        self.prize = xp.constant(100.0, settings.dtype)


class MountainCarContinuousWorlds(SingleAgentWorlds):
    """State `motion` `[2, B]` float32: position x and velocity v."""

    def __init__(self, settings: MountainCarContinuousSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(xp, "float32", num_worlds, observation_size=2)
        self._motion = xp.zeros((2, num_worlds), "float32")
        self._position, self._velocity = self._motion[0], self._motion[1]
        self.state = {"motion": self._motion}
        self._force, self._slope = xp.zeros((num_worlds,), "float32"), xp.zeros((num_worlds,), "float32")
        self._cosine = xp.zeros((num_worlds,), settings.dtype)
        self._constants = _Constants(xp, settings)
        self._at_wall, self._work = xp.zeros((num_worlds,), "bool"), xp.zeros((num_worlds,), "bool")
        self.rewards = {SINGLE_AGENT: xp.zeros((num_worlds, 1), settings.dtype)}
        self._cost = xp.zeros((num_worlds,), settings.dtype)

    def begin(self, draws: XArray) -> None:
        low, high = INITIAL_POSITION
        self._position[...] = low + (high - low) * draws[0]
        self._velocity[...] = 0.0
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp, c, position, velocity, slope = self.xp, self._constants, self._position, self._velocity, self._slope
        action = actions[SINGLE_AGENT][:, 0, 0]
        xp.clip(action, c.min_force, c.max_force, self._force)
        xp.multiply(self._force, c.power, out=self._force)
        xp.multiply(position, c.three, out=slope)
        xp.copy(self._cosine, slope)
        xp.cos(self._cosine, out=self._cosine)
        xp.multiply(self._cosine, c.gravity, out=self._cosine)
        xp.copy(slope, self._cosine)
        xp.subtract(self._force, slope, out=self._force)
        xp.add(velocity, self._force, out=velocity)
        xp.clip(velocity, c.min_speed, c.max_speed, velocity)  # v ← clip(v + 0.0015 F − 0.0025 cos 3x)
        xp.add(position, velocity, out=position)
        xp.clip(position, c.min_position, c.max_position, position)  # x ← clip(x + v)
        xp.less_equal(position, c.min_position, out=self._at_wall)
        xp.less(velocity, c.zero, out=self._work)
        xp.logical_and(self._at_wall, self._work, out=self._at_wall)
        xp.logical_not(self._at_wall, out=self._at_wall)
        xp.multiply(velocity, self._at_wall, out=velocity)  # v ← 0 at the left wall
        xp.greater_equal(position, c.goal_position, out=self.terminated)
        xp.greater_equal(velocity, c.goal_velocity, out=self._work)
        xp.logical_and(self.terminated, self._work, out=self.terminated)
        self._reward_of(action)
        self.observe()

    def observe(self) -> None:
        self.xp.copy_envs_first(self.observation_columns, self._motion)

    def _reward_of(self, action: XArray) -> None:
        """r = 100 at the flag − 0.1 a², of the action before it was clipped."""
        xp, reward = self.xp, self.rewards[SINGLE_AGENT][:, 0]
        xp.copy(self._cost, action)
        xp.square(self._cost, out=self._cost)
        xp.multiply(self._cost, self._constants.cost, out=self._cost)
        xp.multiply(self.terminated, self._constants.prize, out=reward)
        xp.subtract(reward, self._cost, out=reward)

    def draw(self, state: Mapping[str, Array]) -> Array:
        position = float(state["motion"][0])
        canvas = Canvas(width=480, height=300, x_range=(MIN_POSITION, MAX_POSITION), y_bottom=0.06)
        canvas.ground(_height, GREY)
        canvas.ground(lambda x: _height(x) - 0.008, PALE)
        foot = (GOAL_POSITION, float(_height(np.array(GOAL_POSITION))))
        top = (foot[0], foot[1] + 0.14)
        canvas.line(foot, top, 0.004, INK)
        canvas.convex_polygon([(top[0], top[1] - 0.055), (top[0] + 0.09, top[1] - 0.027), top], GREEN)
        slope = math.atan(3 * 0.45 * math.cos(3 * position))
        ground = float(_height(np.array(position)))
        along, up = (math.cos(slope), math.sin(slope)), (-math.sin(slope), math.cos(slope))
        centre = (position + 0.045 * up[0], ground + 0.045 * up[1])
        canvas.box(centre, (0.15, 0.05), slope, INK, rounding=0.015)
        for side in (-0.042, 0.042):
            wheel = (position + side * along[0] + 0.022 * up[0], ground + side * along[1] + 0.022 * up[1])
            canvas.disc(wheel, 0.022, GREY, outline=INK)
        return canvas.pixels()


def _height(x: Array) -> Array:
    """Height of the hills, of which the slope in the equation of motion is the derivative."""
    return np.asarray(np.sin(3 * x) * 0.45 + 0.55)


def blueprint(settings: MountainCarContinuousSettings) -> Blueprint:
    """`native:MountainCarContinuous` with these settings."""
    xp = namespace_of(settings.device)
    low = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
    high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
    return Blueprint(
        name="MountainCarContinuous",
        groups=single_agent_group(spaces.Box(low, high, dtype=np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)),
        max_episode_steps=settings.max_episode_steps,
        num_draws=1,
        build=partial(MountainCarContinuousWorlds, settings, xp),
        xp=xp,
    )
