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
from relayrl.envs.environment_contract import SINGLE_AGENT
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.classic.single_agent import SingleAgentWorlds, single_agent_group
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import GREY, INK, RED, Canvas

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
STEP_S = 0.05
INITIAL_SPEED = 1.0


class PendulumSettings(NativeSettings):
    """Options of `native:Pendulum`."""

    max_episode_steps: int = Field(200, ge=1, description="steps after which an episode is truncated")
    g: float = Field(10.0, description="acceleration of gravity, m/s²")


class _Constants:
    """Numbers of the equations, in the form that is fastest for small batches."""

    def __init__(self, xp: ArrayNamespace, settings: PendulumSettings) -> None:
        dtype = settings.dtype
        self.cost = xp.from_host(np.array([[1.0], [0.1]], dtype))
        self.step_s = xp.constant(STEP_S, dtype)
        self.min_speed, self.max_speed = xp.constant(-MAX_SPEED, dtype), xp.constant(MAX_SPEED, dtype)
        self.turns, self.full_turn = xp.constant(1 / (2 * math.pi), dtype), xp.constant(2 * math.pi, dtype)
        self.half = xp.constant(0.5, dtype)
        self.min_torque, self.max_torque = xp.constant(-MAX_TORQUE, "float32"), xp.constant(MAX_TORQUE, "float32")
        self.torque_cost, self.three = xp.constant(0.001, "float32"), xp.constant(3.0, "float32")


class PendulumWorlds(SingleAgentWorlds):
    """State `motion` `[2, B]`: angle θ from upright and angular velocity θ̇; length and mass are 1."""

    def __init__(self, settings: PendulumSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(xp, settings.dtype, num_worlds, observation_size=3)
        self._motion = xp.zeros((2, num_worlds), settings.dtype)
        self._angle, self._spin = self._motion[0], self._motion[1]
        self.state = {"motion": self._motion}
        self._constants = _Constants(xp, settings)
        self._g = xp.from_host(np.full(num_worlds, settings.g))
        self._pull = xp.from_host((3 * np.full(num_worlds, settings.g) / 2).astype(settings.dtype))  # 3g/2
        self.parameters, self.derived = {"g": self._g}, {"pull": self._pull}
        self._work, self._turn = xp.zeros((2, num_worlds), settings.dtype), xp.zeros((num_worlds,), settings.dtype)
        self._reward = self.rewards[SINGLE_AGENT][:, 0]
        # products of the torque alone are rounded to the action's float32, as in the original
        self._torque, self._torque_work = xp.zeros((num_worlds,), "float32"), xp.zeros((num_worlds,), "float32")
        kernels = step_kernels(xp, settings.dtype) if type(self) is PendulumWorlds else None
        if kernels is not None:
            numbers = (0.1, 0.001, STEP_S, MAX_SPEED, 1 / (2 * math.pi), 2 * math.pi, MAX_TORQUE)
            given = self._motion, np.array(numbers, np.float32), self._pull, (math.pi, INITIAL_SPEED)
            self.compiled = kernels.Pendulums(*given)

    def begin(self, draws: XArray) -> None:
        self._angle[...] = (2 * draws[0] - 1) * math.pi
        self._spin[...] = (2 * draws[1] - 1) * INITIAL_SPEED
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp, c, angle, spin = self.xp, self._constants, self._angle, self._spin
        work, turn, torque, torque_work = self._work, self._turn, self._torque, self._torque_work
        xp.clip(actions[SINGLE_AGENT][:, 0, 0], c.min_torque, c.max_torque, torque)
        xp.square(self._motion, out=work)
        xp.multiply(work, c.cost, out=work)
        xp.add(work[0], work[1], out=turn)
        xp.square(torque, out=torque_work)
        xp.multiply(torque_work, c.torque_cost, out=torque_work)
        xp.add(turn, torque_work, out=turn)  # θ² + 0.1 θ̇² + 0.001 u², of the state before the step
        xp.negative(turn, out=self._reward)
        xp.sin(angle, out=turn)
        xp.multiply(turn, self._pull, out=turn)
        xp.multiply(torque, c.three, out=torque)
        xp.add(turn, torque, out=turn)
        xp.multiply(turn, c.step_s, out=turn)
        xp.add(spin, turn, out=spin)
        xp.clip(spin, c.min_speed, c.max_speed, spin)  # θ̇ ← clip(θ̇ + (3g/2 sin θ + 3u) dt)
        xp.multiply(spin, c.step_s, out=turn)
        xp.add(angle, turn, out=angle)  # θ ← θ + θ̇ dt
        xp.multiply(angle, c.turns, out=turn)
        xp.add(turn, c.half, out=turn)
        xp.floor(turn, out=turn)
        xp.multiply(turn, c.full_turn, out=turn)
        xp.subtract(angle, turn, out=angle)  # θ ← θ − 2π ⌊θ / 2π + ½⌋
        self._write_observations()

    def observe(self) -> None:
        self._pull[...] = 3 * self._g / 2
        self._write_observations()

    def _write_observations(self) -> None:
        xp, turn = self.xp, self._turn
        # sine and cosine go through contiguous memory: their last bit may differ between that and strided columns
        xp.cos(self._angle, out=turn)
        xp.copy(self.observation_columns[0], turn)
        xp.sin(self._angle, out=turn)
        xp.copy(self.observation_columns[1], turn)
        xp.copy(self.observation_columns[2], self._spin)

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
