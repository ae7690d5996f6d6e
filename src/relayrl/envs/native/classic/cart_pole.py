"""CartPole: keep a pole upright by pushing the cart under it left or right.

Barto, Sutton, Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning control problems"; the numbers are
those of Gymnasium's `CartPole-v1`, its Euler integrator included. Drawing is at the end; episodes and time limits are
`BatchedEnvironment`'s.
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
from relayrl.envs.native.array_namespace import ArrayNamespace, DTypeName, XArray, namespace_of
from relayrl.envs.native.classic.single_agent import SingleAgentWorlds, single_agent_group
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.rasteriser import BLUE, GREY, INK, SAND, Canvas

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 0.1 + 1.0
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE = 10.0
STEP_S = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360
INITIAL_BOUND = 0.05


class CartPoleSettings(NativeSettings):
    """Options of `native:CartPole`."""

    max_episode_steps: int = Field(500, ge=1, description="steps after which an episode is truncated")
    sutton_barto_reward: bool = Field(False, description="0 per step and −1 at the end, instead of 1 per step")


class _Constants:
    """Numbers that the equations multiply by, in the form that is fastest for small batches."""

    def __init__(self, xp: ArrayNamespace, dtype: DTypeName) -> None:
        self.lever = xp.constant(POLE_MOMENT / TOTAL_MASS, dtype)  # m l / M
        self.inertia = xp.constant(HALF_LENGTH * 4.0 / 3.0, dtype)
        self.gravity = xp.constant(GRAVITY, dtype)
        self.step_s = xp.constant(STEP_S, dtype)


class CartPoleWorlds(SingleAgentWorlds):
    """State `motion` `[4, B]`: position x and velocity ẋ of the cart, angle θ and angular velocity θ̇ of the pole."""

    def __init__(self, settings: CartPoleSettings, xp: ArrayNamespace, num_worlds: int) -> None:
        super().__init__(xp, settings.dtype, num_worlds, observation_size=4)
        self._sutton_barto = settings.sutton_barto_reward
        self._motion = xp.zeros((4, num_worlds), settings.dtype)
        self.state = {"motion": self._motion}
        self._coordinates, self._velocities = self._motion[0::2], self._motion[1::2]
        self._angle = self._motion[2]
        self._scratch = tuple(xp.zeros((6, num_worlds), settings.dtype))
        self._accelerations = xp.zeros((2, num_worlds), settings.dtype)
        self._constants = _Constants(xp, settings.dtype)
        self._forces = xp.from_host(np.array([-FORCE / TOTAL_MASS, FORCE / TOTAL_MASS], settings.dtype))
        self._change = xp.zeros((2, num_worlds), settings.dtype)
        self._bounds = xp.from_host(np.array([[MAX_POSITION], [MAX_ANGLE]], settings.dtype))
        self._outside = xp.zeros((2, num_worlds), "bool")
        self.rewards[SINGLE_AGENT][...] = 0.0 if self._sutton_barto else 1.0
        self._kernels = step_kernels(xp, settings.dtype) if type(self) is CartPoleWorlds else None
        pushes = (-FORCE / TOTAL_MASS, FORCE / TOTAL_MASS)
        numbers = (POLE_MOMENT / TOTAL_MASS, HALF_LENGTH * 4.0 / 3.0, GRAVITY, STEP_S, *pushes, MAX_POSITION, MAX_ANGLE)
        self._kernel_constants = np.array(numbers, np.float32)
        if self._kernels is not None:
            given = self._motion, self._kernel_constants, INITIAL_BOUND, self._sutton_barto
            self.compiled = self._kernels.CartPoles(*given)

    def begin(self, draws: XArray) -> None:
        self._motion[...] = (2 * draws - 1) * INITIAL_BOUND
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        if self._kernels is None:
            self._step(actions[SINGLE_AGENT][:, 0])
        else:
            self._step_compiled(actions[SINGLE_AGENT])
        if self._sutton_barto:
            self.xp.negative(self.xp.cast(self.terminated, self.dtype), out=self.rewards[SINGLE_AGENT][:, 0])

    def _step_compiled(self, action: Array) -> None:
        """The same as `_step`, to the last bit."""
        assert self._kernels is not None
        (sin, cos, *_), angle = self._scratch, self._angle
        np.sin(angle, out=sin)
        np.cos(angle, out=cos)
        seen, constants = self.observations[SINGLE_AGENT], self._kernel_constants
        self._kernels.step_cart_poles(
            self._motion, np.ascontiguousarray(action), sin, cos, constants, seen, self.terminated
        )

    def _step(self, action: XArray) -> None:
        xp = self.xp
        self._accelerate(action)
        xp.multiply(self._velocities, self._constants.step_s, out=self._change)
        xp.add(self._coordinates, self._change, out=self._coordinates)  # x += τ ẋ, θ += τ θ̇, with the old velocities
        xp.multiply(self._accelerations, self._constants.step_s, out=self._change)
        xp.add(self._velocities, self._change, out=self._velocities)  # ẋ += τ ẍ, θ̇ += τ θ̈
        xp.absolute(self._coordinates, out=self._change)
        xp.greater(self._change, self._bounds, out=self._outside)
        xp.logical_or(self._outside[0], self._outside[1], out=self.terminated)  # |x| > 2.4 or |θ| > 12°
        self.observe()

    def observe(self) -> None:
        self.xp.copy_envs_first(self.observation_columns, self._motion)

    def _accelerate(self, action: XArray) -> None:
        """ẍ and θ̈ from the equations of motion, into `_accelerations`."""
        xp, c = self.xp, self._constants
        angle, spin = self._motion[2], self._motion[3]
        sin, cos, push, lever, inertia, work = self._scratch
        cart, pole = self._accelerations
        xp.sin(angle, out=sin)
        xp.cos(angle, out=cos)
        xp.square(spin, out=push)
        xp.multiply(push, sin, out=push)
        xp.multiply(push, c.lever, out=push)
        xp.take(self._forces, action, 0, work)
        xp.add(push, work, out=push)  # push = (F + m l θ̇² sin θ) / M
        xp.multiply(cos, c.lever, out=lever)
        xp.multiply(lever, cos, out=inertia)
        xp.subtract(c.inertia, inertia, out=inertia)  # l (4/3 − m cos²θ / M)
        xp.multiply(sin, c.gravity, out=pole)
        xp.multiply(cos, push, out=work)
        xp.subtract(pole, work, out=pole)
        xp.divide(pole, inertia, out=pole)  # θ̈ = (g sin θ − cos θ push) / inertia
        xp.multiply(pole, lever, out=work)
        xp.subtract(push, work, out=cart)  # ẍ = push − m l θ̈ cos θ / M

    def draw(self, state: Mapping[str, Array]) -> Array:
        position, _, angle, _ = (float(number) for number in state["motion"])
        canvas = Canvas(width=480, height=300, x_range=(-MAX_POSITION, MAX_POSITION), y_bottom=-0.9)
        canvas.line((-MAX_POSITION, 0), (MAX_POSITION, 0), 0.012, GREY)
        canvas.box((position, 0), (0.5, 0.3), 0.0, INK, rounding=0.04)
        tip = (position + 1.6 * math.sin(angle), 0.1 + 1.6 * math.cos(angle))
        canvas.line((position, 0.1), tip, 0.055, SAND)
        canvas.disc((position, 0.1), 0.05, BLUE)
        return canvas.pixels()


def blueprint(settings: CartPoleSettings) -> Blueprint:
    """`native:CartPole` with these settings."""
    xp = namespace_of(settings.device)
    high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)
    return Blueprint(
        name="CartPole",
        groups=single_agent_group(spaces.Box(-high, high, dtype=np.float32), spaces.Discrete(2)),
        max_episode_steps=settings.max_episode_steps,
        num_draws=4,
        build=partial(CartPoleWorlds, settings, xp),
        xp=xp,
    )
