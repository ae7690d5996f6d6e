"""CartPole and Pendulum: one step of `envs.native.classic` in float32, operation by operation in the reference's order."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.accelerator.gpu.environments.stream_kernels import count_step, symmetric
from relayrl.envs.native.classic import cart_pole, pendulum

LEVER = tl.constexpr(cart_pole.POLE_MOMENT / cart_pole.TOTAL_MASS)
INERTIA = tl.constexpr(cart_pole.HALF_LENGTH * 4.0 / 3.0)
GRAVITY = tl.constexpr(cart_pole.GRAVITY)
PUSH = tl.constexpr(cart_pole.FORCE / cart_pole.TOTAL_MASS)
CART_STEP_S = tl.constexpr(cart_pole.STEP_S)
MAX_POSITION, MAX_ANGLE = tl.constexpr(cart_pole.MAX_POSITION), tl.constexpr(cart_pole.MAX_ANGLE)
CART_BOUND = tl.constexpr(cart_pole.INITIAL_BOUND)
MAX_SPEED, MAX_TORQUE = tl.constexpr(pendulum.MAX_SPEED), tl.constexpr(pendulum.MAX_TORQUE)
PENDULUM_STEP_S, INITIAL_SPEED = tl.constexpr(pendulum.STEP_S), tl.constexpr(pendulum.INITIAL_SPEED)
PI, TURNS, FULL_TURN = tl.constexpr(math.pi), tl.constexpr(1 / (2 * math.pi)), tl.constexpr(2 * math.pi)


@triton.jit
def cart_pole_step(
    b, ok, MOTION, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, num_envs, limit,
    SUTTON_BARTO: tl.constexpr,
):  # fmt: skip
    """Step the environments `b`."""
    x = tl.load(MOTION + b, mask=ok, other=0.0)
    dx = tl.load(MOTION + num_envs + b, mask=ok, other=0.0)
    angle = tl.load(MOTION + 2 * num_envs + b, mask=ok, other=0.0)
    spin = tl.load(MOTION + 3 * num_envs + b, mask=ok, other=0.0)
    action = tl.load(ACTION + b, mask=ok, other=0)
    sin, cos = tl.sin(angle), tl.cos(angle)
    push = spin * spin * sin * LEVER + tl.where(action == 1, PUSH, -PUSH)
    lever = cos * LEVER
    inertia = INERTIA - lever * cos
    spin_rate = tl.div_rn(sin * GRAVITY - cos * push, inertia)
    x_rate = push - spin_rate * lever
    x, angle = x + dx * CART_STEP_S, angle + spin * CART_STEP_S
    dx, spin = dx + x_rate * CART_STEP_S, spin + spin_rate * CART_STEP_S
    terminated = (tl.abs(x) > MAX_POSITION) | (tl.abs(angle) > MAX_ANGLE)
    at = b * 4
    tl.store(FINAL + at, x, mask=ok)
    tl.store(FINAL + at + 1, dx, mask=ok)
    tl.store(FINAL + at + 2, angle, mask=ok)
    tl.store(FINAL + at + 3, spin, mask=ok)
    reward = tl.where(terminated, -1.0, -0.0) if SUTTON_BARTO else tl.where(terminated, 1.0, 1.0)
    tl.store(REWARD + b, reward, mask=ok)
    over, _, _, stream = count_step(terminated, b, ok, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, limit, False)
    x = tl.where(over, symmetric(stream, 0, CART_BOUND), x)
    dx = tl.where(over, symmetric(stream, 1, CART_BOUND), dx)
    angle = tl.where(over, symmetric(stream, 2, CART_BOUND), angle)
    spin = tl.where(over, symmetric(stream, 3, CART_BOUND), spin)
    tl.store(MOTION + b, x, mask=ok)
    tl.store(MOTION + num_envs + b, dx, mask=ok)
    tl.store(MOTION + 2 * num_envs + b, angle, mask=ok)
    tl.store(MOTION + 3 * num_envs + b, spin, mask=ok)
    tl.store(OBS + at, x, mask=ok)
    tl.store(OBS + at + 1, dx, mask=ok)
    tl.store(OBS + at + 2, angle, mask=ok)
    tl.store(OBS + at + 3, spin, mask=ok)


@triton.jit
def pendulum_step(
    b, ok, MOTION, PULL, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, num_envs, limit
):
    """The same of Pendulum."""
    angle = tl.load(MOTION + b, mask=ok, other=0.0)
    spin = tl.load(MOTION + num_envs + b, mask=ok, other=0.0)
    torque = tl.minimum(tl.maximum(tl.load(ACTION + b, mask=ok, other=0.0), -MAX_TORQUE), MAX_TORQUE)
    reward = -(angle * angle + spin * spin * 0.1 + torque * torque * 0.001)
    tl.store(REWARD + b, reward, mask=ok)
    pull = tl.load(PULL + b, mask=ok, other=0.0)
    spin = spin + (tl.sin(angle) * pull + torque * 3.0) * PENDULUM_STEP_S
    spin = tl.minimum(tl.maximum(spin, -MAX_SPEED), MAX_SPEED)
    angle = angle + spin * PENDULUM_STEP_S
    angle = angle - tl.floor(angle * TURNS + 0.5) * FULL_TURN
    at = b * 3
    tl.store(FINAL + at, tl.cos(angle), mask=ok)
    tl.store(FINAL + at + 1, tl.sin(angle), mask=ok)
    tl.store(FINAL + at + 2, spin, mask=ok)
    over, _, _, stream = count_step(b < 0, b, ok, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, limit, False)
    angle = tl.where(over, symmetric(stream, 0, PI), angle)
    spin = tl.where(over, symmetric(stream, 1, INITIAL_SPEED), spin)
    tl.store(MOTION + b, angle, mask=ok)
    tl.store(MOTION + num_envs + b, spin, mask=ok)
    tl.store(OBS + at, tl.cos(angle), mask=ok)
    tl.store(OBS + at + 1, tl.sin(angle), mask=ok)
    tl.store(OBS + at + 2, spin, mask=ok)


@Kernel
def cart_pole_kernel(
    MOTION, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, num_envs, limit,
    SUTTON_BARTO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cart_pole_step(
        b, b < num_envs, MOTION, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, num_envs,
        limit, SUTTON_BARTO,
    )  # fmt: skip


@Kernel
def pendulum_kernel(
    MOTION, PULL, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, num_envs, limit,
    BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pendulum_step(
        b, b < num_envs, MOTION, PULL, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER,
        num_envs, limit,
    )  # fmt: skip
