"""`envs.native.random_streams` and the counters of `BatchedEnvironment`, as parts of kernels, bit for bit."""

from __future__ import annotations

import triton
import triton.language as tl

GAMMA = tl.constexpr(0x9E37_79B9_7F4A_7C15 - (1 << 64))
MIX_1 = tl.constexpr(0xBF58_476D_1CE4_E5B9 - (1 << 64))
MIX_2 = tl.constexpr(0x94D0_49BB_1331_11EB - (1 << 64))


@triton.jit
def mix64(bits):
    """SplitMix64's output function; shifts of signed integers are arithmetic, so the copies of the sign are masked away."""
    bits = (bits ^ ((bits >> 30) & ((1 << 34) - 1))) * MIX_1
    bits = (bits ^ ((bits >> 27) & ((1 << 37) - 1))) * MIX_2
    return bits ^ ((bits >> 31) & ((1 << 33) - 1))


@triton.jit
def uniform(stream, DRAW: tl.constexpr):
    """Draw DRAW of a stream, float64 in [0, 1)."""
    counter = stream * 0 + (DRAW + 1)  # a tensor: the product wraps around
    bits = mix64(stream + counter * GAMMA)
    return ((bits >> 11) & ((1 << 53) - 1)).to(tl.float64) * (1.0 / (1 << 53))


@triton.jit
def symmetric(stream, DRAW: tl.constexpr, BOUND: tl.constexpr):
    """A draw from [−BOUND, BOUND), rounded to float32 last."""
    return ((2.0 * uniform(stream, DRAW) - 1.0) * BOUND).to(tl.float32)


@triton.jit
def count_step(
    terminated, b, ok, ELAPSED, EPISODE, KEY, TERMINATED, TRUNCATED, OVER, limit, TRUNCATION_HIDES: tl.constexpr
):
    """Count the step, store who ended and give that with `terminated`, `truncated` and the streams of the next episodes."""
    elapsed = tl.load(ELAPSED + b, mask=ok, other=0) + 1
    truncated = elapsed >= limit
    over = terminated | truncated
    if TRUNCATION_HIDES:
        terminated = terminated & (elapsed < limit)
    tl.store(TERMINATED + b, terminated, mask=ok)
    tl.store(TRUNCATED + b, truncated, mask=ok)
    tl.store(OVER + b, over, mask=ok)
    episode = tl.load(EPISODE + b, mask=ok, other=0) + over.to(tl.int64)
    tl.store(EPISODE + b, episode, mask=ok)
    tl.store(ELAPSED + b, tl.where(over, 0, elapsed), mask=ok)
    stream = mix64(tl.load(KEY + b, mask=ok, other=0) + (episode + 1) * GAMMA)
    return over, terminated, truncated, stream
