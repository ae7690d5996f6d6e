"""`envs.native.random_streams` and the counters of `BatchedEnvironment`, as parts of kernels, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel

DRAW_BLOCK = 256
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


@Kernel
def uniforms_kernel(KEY, EPISODE, OUT, num_worlds, BLOCK: tl.constexpr):
    """OUT [D, B]: draw D of the episodes that begin; programs are blocks of worlds by draws."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = b < num_worlds
    stream = mix64(tl.load(KEY + b, mask=ok, other=0) + (tl.load(EPISODE + b, mask=ok, other=0) + 1) * GAMMA)
    counter = stream * 0 + (tl.program_id(1) + 1)
    bits = mix64(stream + counter * GAMMA)
    draw = ((bits >> 11) & ((1 << 53) - 1)).to(tl.float64) * (1.0 / (1 << 53))
    tl.store(OUT + tl.program_id(1) * num_worlds + b, draw, mask=ok)


def fused_uniforms(xp: Any, keys: Tensor, episodes: Tensor, num_draws: int) -> Tensor:
    """[D, B] `random_streams.uniforms`, in one launch."""
    del xp
    num_worlds = keys.shape[0]
    out = torch.empty((num_draws, num_worlds), dtype=torch.float64, device=keys.device)
    if num_draws:
        uniforms_kernel[(triton.cdiv(num_worlds, DRAW_BLOCK), num_draws)](
            keys, episodes, out, num_worlds, BLOCK=DRAW_BLOCK
        )
    return out


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
