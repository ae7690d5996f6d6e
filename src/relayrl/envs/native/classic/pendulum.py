"""Pendulum: swing a rod up with a motor that is too weak to lift it at once, and hold it there.

The numbers are those of Gymnasium's `Pendulum-v1`. The angle is kept in [−π, π), which changes no observation or reward and
keeps float32 exact over long episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from gymnasium import spaces
from pydantic import Field

from relayrl.data.trees import Array
from relayrl.envs.contract import SINGLE_AGENT
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.classic.single_agent import SingleAgentWorlds, single_agent_group
from relayrl.envs.native.native_settings import ClassicSettings
from relayrl.envs.native.rasteriser import GREY, INK, RED, Canvas
from relayrl.envs.native.worlds import Blueprint

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
STEP_S = 0.05
INITIAL_SPEED = 1.0


class PendulumSettings(ClassicSettings):
    """Options of `native:Pendulum`."""

    max_episode_steps: int = Field(200, ge=1, description="steps after which an episode is truncated")
    g: float = Field(10.0, description="acceleration of gravity, m/s²")


class PendulumWorlds(SingleAgentWorlds):
    """State `motion` `[2, B]`: angle θ from upright and angular velocity θ̇; length and mass are 1."""

    def __init__(self, settings: PendulumSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(xp, settings.dtype, num_worlds, observation_size=3)
        self._motion = xp.zeros((2, num_worlds), settings.dtype)
        self._angle, self._spin = self._motion[0], self._motion[1]
        self.state = {"motion": self._motion}
        self._gravity = 3 * settings.g / 2
        self._cost, self._work = xp.zeros((num_worlds,), settings.dtype), xp.zeros((num_worlds,), settings.dtype)
        # products of the torque alone are rounded to the action's float32, as in the original
        self._torque, self._torque_work = xp.zeros((num_worlds,), "float32"), xp.zeros((num_worlds,), "float32")

    def begin(self, draws: XArray) -> None:
        self._angle[...] = (2 * draws[0] - 1) * math.pi
        self._spin[...] = (2 * draws[1] - 1) * INITIAL_SPEED
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp, angle, spin = self.xp, self._angle, self._spin
        cost, work, torque, torque_work = self._cost, self._work, self._torque, self._torque_work
        xp.clip(actions[SINGLE_AGENT][:, 0, 0], -MAX_TORQUE, MAX_TORQUE, torque)
        xp.square(angle, out=cost)
        xp.square(spin, out=work)
        xp.multiply(work, 0.1, out=work)
        xp.add(cost, work, out=cost)
        xp.square(torque, out=torque_work)
        xp.multiply(torque_work, 0.001, out=torque_work)
        xp.add(cost, torque_work, out=cost)  # θ² + 0.1 θ̇² + 0.001 u², of the state before the step
        xp.negative(cost, out=self.rewards[SINGLE_AGENT][:, 0])
        xp.sin(angle, out=work)
        xp.multiply(work, self._gravity, out=work)
        xp.multiply(torque, 3.0, out=torque)
        xp.add(work, torque, out=work)
        xp.multiply(work, STEP_S, out=work)
        xp.add(spin, work, out=spin)
        xp.clip(spin, -MAX_SPEED, MAX_SPEED, spin)  # θ̇ ← clip(θ̇ + (3g/2 sin θ + 3u) dt)
        xp.multiply(spin, STEP_S, out=work)
        xp.add(angle, work, out=angle)  # θ ← θ + θ̇ dt
        self._wrap()
        self.observe()

    def observe(self) -> None:
        columns = self.observation_columns
        self.xp.cos(self._angle, out=columns[0])
        self.xp.sin(self._angle, out=columns[1])
        self.xp.copy(columns[2], self._spin)

    def _wrap(self) -> None:
        """θ ← θ − 2π ⌊(θ + π) / 2π⌋."""
        xp, work = self.xp, self._work
        xp.add(self._angle, math.pi, out=work)
        xp.multiply(work, 1 / (2 * math.pi), out=work)
        xp.floor(work, out=work)
        xp.multiply(work, 2 * math.pi, out=work)
        xp.subtract(self._angle, work, out=self._angle)

    def draw(self, state: Mapping[str, Array]) -> Array:
        angle = float(state["motion"][0])
        canvas = Canvas(width=300, height=300, x_range=(-1.4, 1.4), y_bottom=-1.4)
        canvas.disc((0, 0), 1.0, (243, 243, 240), outline=GREY)
        tip = (-math.sin(angle), math.cos(angle))
        canvas.line((0, 0), tip, 0.085, RED)
        canvas.disc((0, 0), 0.045, INK)
        return canvas.pixels()


def blueprint(settings: PendulumSettings) -> Blueprint:
    """`native:Pendulum` with these settings."""
    xp = namespace_of(settings.device)
    high = np.array([1.0, 1.0, MAX_SPEED], np.float32)
    return Blueprint(
        name="Pendulum",
        groups=single_agent_group(
            spaces.Box(-high, high, dtype=np.float32), spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
        ),
        max_episode_steps=settings.max_episode_steps,
        num_draws=2,
        build=partial(PendulumWorlds, settings, xp),
        xp=xp,
    )
