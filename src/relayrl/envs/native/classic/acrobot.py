"""Acrobot: swing a two-link arm, driven only at its middle joint, until its tip is above the line.

Sutton 1996, "Generalization in reinforcement learning: successful examples using sparse coarse coding"; the numbers are those
of Gymnasium's `Acrobot-v1` (the book's equations, fourth-order Runge-Kutta, one step of 0.2 s).
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
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import BLUE, GREY, INK, SAND, Canvas

STEP_S = 0.2
LENGTH = 1.0
MASS = 1.0
CENTRE = 0.5  # of mass of a link, from its joint
INERTIA = 1.0
GRAVITY = 9.8
MAX_SPEED_1, MAX_SPEED_2 = 4 * math.pi, 9 * math.pi
INITIAL_BOUND = 0.1


class AcrobotSettings(NativeSettings):
    """Options of `native:Acrobot`."""

    max_episode_steps: int = Field(500, ge=1, description="steps after which an episode is truncated")


class AcrobotWorlds(SingleAgentWorlds):
    """State `motion` `[4, B]`: angles θ₁ (from straight down), θ₂ (relative to link 1) and their velocities."""

    def __init__(self, settings: AcrobotSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(xp, settings.dtype, num_worlds, observation_size=6)
        self._motion = xp.zeros((4, num_worlds), settings.dtype)
        self.state = {"motion": self._motion}
        self._rate, self._probe, self._total = (xp.zeros((4, num_worlds), settings.dtype) for _ in range(3))
        self._cos, self._sin = self.observation_columns[0:4:2], self.observation_columns[1:4:2]

    def begin(self, draws: XArray) -> None:
        # the original rounds the initial state to float32
        self._motion[...] = self.xp.cast((2 * draws - 1) * INITIAL_BOUND, "float32")
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        xp, motion = self.xp, self._motion
        self._integrate(xp.cast(actions[SINGLE_AGENT][:, 0] - 1, self.dtype))
        turns = (motion[:2] + math.pi) * (1 / (2 * math.pi))
        motion[:2] -= xp.floor(turns) * (2 * math.pi)
        xp.clip(motion[2], -MAX_SPEED_1, MAX_SPEED_1, motion[2])
        xp.clip(motion[3], -MAX_SPEED_2, MAX_SPEED_2, motion[3])
        self.observe()
        xp.greater(-xp.cos(motion[0]) - xp.cos(motion[0] + motion[1]), 1.0, out=self.terminated)  # height of the tip
        xp.subtract(xp.cast(self.terminated, self.dtype), 1.0, out=self.rewards[SINGLE_AGENT][:, 0])  # −1 until there

    def observe(self) -> None:
        # through contiguous memory: the last bit may differ between that and strided columns
        self.xp.copy(self._cos, self.xp.cos(self._motion[:2]))
        self.xp.copy(self._sin, self.xp.sin(self._motion[:2]))
        self.xp.copy(self.observation_columns[4:], self._motion[2:])

    def _integrate(self, torque: XArray) -> None:
        """One step of the classic Runge-Kutta method: y += h/6 (k₁ + 2 k₂ + 2 k₃ + k₄)."""
        xp, motion, rate, probe, total = self.xp, self._motion, self._rate, self._probe, self._total
        self._rate_of_change(motion, torque)
        xp.copy(total, rate)  # k₁
        for weight, ahead_s in ((2.0, STEP_S / 2), (2.0, STEP_S / 2), (1.0, STEP_S)):
            xp.multiply(rate, ahead_s, out=probe)
            xp.add(motion, probe, out=probe)
            self._rate_of_change(probe, torque)
            xp.multiply(rate, weight, out=probe)
            xp.add(total, probe, out=total)
        xp.multiply(total, STEP_S / 6, out=total)
        xp.add(motion, total, out=motion)

    def _rate_of_change(self, motion: XArray, torque: XArray) -> None:
        """dy/dt of the state `motion` under `torque`, into `_rate` (Sutton and Barto 2018, equations of figure 11.4)."""
        xp = self.xp
        angle_1, angle_2, spin_1, spin_2 = motion
        link = MASS * LENGTH * CENTRE
        cos_2, sin_2 = link * xp.cos(angle_2), link * xp.sin(angle_2)
        d1 = 2 * cos_2 + (2 * MASS * CENTRE**2 + MASS * LENGTH**2 + 2 * INERTIA)
        d2 = cos_2 + (MASS * CENTRE**2 + INERTIA)
        phi_2 = MASS * CENTRE * GRAVITY * xp.sin(angle_1 + angle_2)
        phi_1 = (
            phi_2 + (MASS * CENTRE + MASS * LENGTH) * GRAVITY * xp.sin(angle_1) - sin_2 * spin_2 * (spin_2 + 2 * spin_1)
        )
        ratio = d2 / d1
        acceleration_2 = (torque + ratio * phi_1 - sin_2 * spin_1 * spin_1 - phi_2) / (
            MASS * CENTRE**2 + INERTIA - d2 * ratio
        )
        xp.copy(self._rate[:2], motion[2:])
        xp.copy(self._rate[2], -(d2 * acceleration_2 + phi_1) / d1)
        xp.copy(self._rate[3], acceleration_2)

    def draw(self, state: Mapping[str, Array]) -> Array:
        angle_1, angle_2 = float(state["motion"][0]), float(state["motion"][1])
        canvas = Canvas(width=300, height=300, x_range=(-2.3, 2.3), y_bottom=-2.3)
        canvas.line((-2.3, LENGTH), (2.3, LENGTH), 0.012, GREY)
        elbow = (LENGTH * math.sin(angle_1), -LENGTH * math.cos(angle_1))
        tip = (elbow[0] + LENGTH * math.sin(angle_1 + angle_2), elbow[1] - LENGTH * math.cos(angle_1 + angle_2))
        canvas.line((0, 0), elbow, 0.09, BLUE)
        canvas.line(elbow, tip, 0.09, BLUE)
        for joint in ((0.0, 0.0), elbow):
            canvas.disc(joint, 0.09, SAND, outline=INK)
        return canvas.pixels()


def blueprint(settings: AcrobotSettings) -> Blueprint:
    """`native:Acrobot` with these settings."""
    xp = namespace_of(settings.device)
    high = np.array([1.0, 1.0, 1.0, 1.0, MAX_SPEED_1, MAX_SPEED_2], np.float32)
    return Blueprint(
        name="Acrobot",
        groups=single_agent_group(spaces.Box(-high, high, dtype=np.float32), spaces.Discrete(3)),
        max_episode_steps=settings.max_episode_steps,
        num_draws=4,
        build=partial(AcrobotWorlds, settings, xp),
        xp=xp,
    )
