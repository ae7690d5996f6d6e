"""CartPole's equations of motion over any array namespace: jax.numpy in the JAX program, NumPy where they are tested."""

from __future__ import annotations

import math
from typing import Any

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, FORCE, STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL_MASS, POLE_MOMENT = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
MAX_POSITION, MAX_ANGLE, MAX_STEPS = 2.4, 12 * 2 * math.pi / 360, 500
START_RANGE = 0.05


def advance(xp: Any, state: Any, action: Any) -> Any:
    """[B, 4] states (position, velocity, angle, angular velocity) one step later, by Euler's method as Gymnasium has it."""
    x, x_dot, theta, theta_dot = (state[..., i] for i in range(4))
    force = xp.where(action == 1, FORCE, -FORCE)
    sine, cosine = xp.sin(theta), xp.cos(theta)
    push = (force + POLE_MOMENT * theta_dot**2 * sine) / TOTAL_MASS
    theta_acc = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / TOTAL_MASS))
    x_acc = push - POLE_MOMENT * theta_acc * cosine / TOTAL_MASS
    columns = (x + STEP_S * x_dot, x_dot + STEP_S * x_acc, theta + STEP_S * theta_dot, theta_dot + STEP_S * theta_acc)
    return xp.stack(columns, -1)


def has_fallen(xp: Any, state: Any) -> Any:
    """[B] whether the cart left the track or the pole fell."""
    return (xp.abs(state[..., 0]) > MAX_POSITION) | (xp.abs(state[..., 2]) > MAX_ANGLE)
