"""simple_spread: one step of `envs.native.particles` for a block of worlds, every agent and landmark in registers.

Numbers are the reference's but for the last bits of the contact forces (log1p of what is next to nothing, and divisions).
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.accelerator.gpu.environments.stream_kernels import count_step, symmetric
from relayrl.envs.native.particles import geometry, particle_worlds
from relayrl.envs.native.particles.scenarios import simple_spread

STEP_S, KEPT = tl.constexpr(particle_worlds.STEP_S), tl.constexpr(1 - particle_worlds.DAMPING)
FORCE, MARGIN = tl.constexpr(geometry.CONTACT_FORCE), tl.constexpr(geometry.CONTACT_MARGIN)
REACH, COVER = tl.constexpr(2 * simple_spread.AGENT_SIZE), tl.constexpr(simple_spread.COVER_DISTANCE)


@triton.jit
def distance(dx, dy):
    return tl.sqrt_rn(dx * dx + dy * dy)


@triton.jit
def contact(dx, dy):
    """How strongly two agents push each other, over their distance: 100 · softplus of the overlap, away from the other."""
    apart = distance(dx, dy)
    overlap = tl.div_rn(REACH - apart, apart * 0.0 + MARGIN)
    soft = tl.maximum(overlap, 0.0) + tl.log(1.0 + tl.exp(-tl.minimum(tl.abs(overlap), 60.0)))
    return tl.div_rn(soft * (-FORCE * MARGIN), tl.maximum(apart, 1e-12))


@triton.jit
def write_observations(OBS, b, ok, px, py, vx, vy, N: tl.constexpr):
    """Own velocity, own position, landmarks and other agents (relative), and the silent channel."""
    WIDTH: tl.constexpr = 4 + 2 * N + 4 * (N - 1)
    for i in tl.static_range(N):
        own = OBS + (b * N + i) * WIDTH
        tl.store(own, vx[i], mask=ok)
        tl.store(own + 1, vy[i], mask=ok)
        tl.store(own + 2, px[i], mask=ok)
        tl.store(own + 3, py[i], mask=ok)
        for j in tl.static_range(N):
            tl.store(own + 4 + 2 * j, px[N + j] - px[i], mask=ok)
            tl.store(own + 5 + 2 * j, py[N + j] - py[i], mask=ok)
        for j in tl.static_range(N - 1):
            tl.store(own + 4 + 2 * N + 2 * j, px[j + (j >= i)] - px[i], mask=ok)
            tl.store(own + 5 + 2 * N + 2 * j, py[j + (j >= i)] - py[i], mask=ok)
            tl.store(own + 4 + 2 * N + 2 * (N - 1) + 2 * j, px[i] * 0.0, mask=ok)
            tl.store(own + 5 + 2 * N + 2 * (N - 1) + 2 * j, px[i] * 0.0, mask=ok)


@triton.jit
def keep_geometry(OFFSET, DISTANCE, b, ok, num_envs, px, py, N: tl.constexpr):
    """What the worlds derive from the positions: offsets `[2, N, 2 N − 1, B]` and distances `[N, 2 N − 1, B]`."""
    K: tl.constexpr = 2 * N - 1
    for i in tl.static_range(N):
        for j in tl.static_range(K):
            dx = px[N + j if j < N else j - N + (j - N >= i)] - px[i]
            dy = py[N + j if j < N else j - N + (j - N >= i)] - py[i]
            tl.store(OFFSET + (i * K + j) * num_envs + b, dx, mask=ok)
            tl.store(OFFSET + ((N + i) * K + j) * num_envs + b, dy, mask=ok)
            tl.store(DISTANCE + (i * K + j) * num_envs + b, distance(dx, dy), mask=ok)


@triton.jit
def spread_step(
    b, ok, POSITION, VELOCITY, OFFSET, DISTANCE, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED,
    OVER, AGENT_TERMINATED, AGENT_TRUNCATED, num_envs, limit, local_ratio, acceleration,
    N: tl.constexpr, HAS_END: tl.constexpr,
):  # fmt: skip
    """Step the environments `b`."""
    old_x, old_y, vx, vy = (), (), (), ()
    for i in tl.static_range(2 * N):
        old_x = old_x + (tl.load(POSITION + i * num_envs + b, mask=ok, other=0.0),)
        old_y = old_y + (tl.load(POSITION + (2 * N + i) * num_envs + b, mask=ok, other=0.0),)
    px, py = (), ()
    for i in tl.static_range(N):
        action = tl.load(ACTION + b * N + i, mask=ok, other=0)
        push_x = old_x[0] * 0.0
        push_y = old_x[0] * 0.0
        for j in tl.static_range(N):
            if j != i:
                dx, dy = old_x[j] - old_x[i], old_y[j] - old_y[i]
                soft = contact(dx, dy)
                push_x += dx * soft
                push_y += dy * soft
        force_x = tl.where(action == 1, -acceleration, tl.where(action == 2, acceleration, 0.0)) + push_x
        force_y = tl.where(action == 3, -acceleration, tl.where(action == 4, acceleration, 0.0)) + push_y
        was_x = tl.load(VELOCITY + i * num_envs + b, mask=ok, other=0.0)
        was_y = tl.load(VELOCITY + (N + i) * num_envs + b, mask=ok, other=0.0)
        px, py = px + (old_x[i] + was_x * STEP_S,), py + (old_y[i] + was_y * STEP_S,)
        vx, vy = vx + (was_x * KEPT + force_x * STEP_S,), vy + (was_y * KEPT + force_y * STEP_S,)
    px, py = px + old_x[N:], py + old_y[N:]
    team = old_x[0] * 0.0
    is_covered = b >= 0
    for j in tl.static_range(N):
        nearest = distance(px[N + j] - px[0], py[N + j] - py[0])
        for i in tl.static_range(1, N):
            nearest = tl.minimum(nearest, distance(px[N + j] - px[i], py[N + j] - py[i]))
        team += nearest
        is_covered = is_covered & (nearest < COVER)
    for i in tl.static_range(N):
        collisions = old_x[0] * 0.0
        for j in tl.static_range(N):
            if j != i:
                collisions += tl.where(distance(px[j] - px[i], py[j] - py[i]) < REACH, 1.0, 0.0)
        tl.store(REWARD + b * N + i, collisions * (-local_ratio) + team * (local_ratio - 1.0), mask=ok)
    write_observations(FINAL, b, ok, px, py, vx, vy, N)
    terminated = is_covered if HAS_END else b < 0
    over, terminated, truncated, stream = count_step(
        terminated, b, ok, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, limit, HAS_END
    )
    new_x, new_y, new_vx, new_vy = (), (), (), ()
    for i in tl.static_range(2 * N):
        new_x = new_x + (tl.where(over, symmetric(stream, 2 * i, 1.0), px[i]),)
        new_y = new_y + (tl.where(over, symmetric(stream, 2 * i + 1, 1.0), py[i]),)
        tl.store(POSITION + i * num_envs + b, new_x[i], mask=ok)
        tl.store(POSITION + (2 * N + i) * num_envs + b, new_y[i], mask=ok)
    for i in tl.static_range(N):
        new_vx = new_vx + (tl.where(over, 0.0, vx[i]),)
        new_vy = new_vy + (tl.where(over, 0.0, vy[i]),)
        tl.store(VELOCITY + i * num_envs + b, new_vx[i], mask=ok)
        tl.store(VELOCITY + (N + i) * num_envs + b, new_vy[i], mask=ok)
        tl.store(AGENT_TERMINATED + b * N + i, terminated, mask=ok)
        tl.store(AGENT_TRUNCATED + b * N + i, truncated, mask=ok)
    write_observations(OBS, b, ok, new_x, new_y, new_vx, new_vy, N)
    keep_geometry(OFFSET, DISTANCE, b, ok, num_envs, new_x, new_y, N)


@Kernel
def spread_kernel(
    POSITION, VELOCITY, OFFSET, DISTANCE, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER,
    AGENT_TERMINATED, AGENT_TRUNCATED, num_envs, limit, local_ratio, acceleration,
    N: tl.constexpr, HAS_END: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    spread_step(
        b, b < num_envs, POSITION, VELOCITY, OFFSET, DISTANCE, ACTION, OBS, FINAL, REWARD, ELAPSED, EPISODE, KEY,
        TERMINATED, TRUNCATED, OVER, AGENT_TERMINATED, AGENT_TRUNCATED, num_envs, limit, local_ratio, acceleration,
        N, HAS_END,
    )  # fmt: skip
