"""Returns and lengths of the episodes that end in a rollout: the twin of `ResidentEpisodes.add` for one group of agents.

Ends are counted first, so that every program knows where in the ring its episodes go: in the order of time, then of
environments.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel

MAX_AGENTS = 8


@triton.jit
def ends_of(TERMINATED, TRUNCATED, t, b, ok, num_envs, N: tl.constexpr):
    """1 where an environment's episode is over after row t, by its first agent's flags."""
    at = (t * num_envs + b) * N
    terminated = tl.load(TERMINATED + at, mask=ok, other=0) != 0
    return (terminated | (tl.load(TRUNCATED + at, mask=ok, other=0) != 0)).to(tl.int32)


@Kernel
def ends_kernel(TERMINATED, TRUNCATED, COUNTS, num_envs, num_blocks, N: tl.constexpr, BLOCK: tl.constexpr):
    """COUNTS [T, blocks]; programs are blocks of environments by rows."""
    p, t = tl.program_id(0), tl.program_id(1)
    b = p * BLOCK + tl.arange(0, BLOCK)
    ended = ends_of(TERMINATED, TRUNCATED, t, b, b < num_envs, num_envs, N)
    tl.store(COUNTS + t * num_blocks + p, tl.sum(ended, 0))


@Kernel
def episodes_kernel(
    REWARD, TERMINATED, TRUNCATED, PLACES, SUMS, RING, COUNT, num_envs, num_blocks,
    N: tl.constexpr, T: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Go on with SUMS [B, N + 1], of rewards and steps; of the episodes that end, the last CAPACITY go into the RING."""
    p = tl.program_id(0)
    b = p * BLOCK + tl.arange(0, BLOCK)
    ok = b < num_envs
    sums = ()
    for i in tl.static_range(N + 1):
        sums = sums + (tl.load(SUMS + b * (N + 1) + i, mask=ok, other=0.0),)
    count, total = tl.load(COUNT), tl.load(PLACES + T * num_blocks - 1)
    for t in range(T):
        ended = ends_of(TERMINATED, TRUNCATED, t, b, ok, num_envs, N)
        place = tl.load(PLACES + t * num_blocks + p) - tl.sum(ended, 0) + tl.cumsum(ended, 0)
        is_kept = (ended != 0) & (total - place < CAPACITY)
        slot = (count + place - 1) % CAPACITY * (N + 1)
        added = ()
        for i in tl.static_range(N + 1):
            if i < N:
                more = tl.load(REWARD + (t * num_envs + b) * N + i, mask=ok, other=0.0).to(tl.float64)
            else:
                more = sums[N] * 0.0 + 1.0
            tl.store(RING + slot + i, sums[i] + more, mask=is_kept)
            added = added + (tl.where(ended != 0, 0.0, sums[i] + more),)
        sums = added
    for i in tl.static_range(N + 1):
        tl.store(SUMS + b * (N + 1) + i, sums[i], mask=ok)


def add_episodes(rollout: Any, sums: Tensor, ring: Tensor, count: Tensor) -> None:
    """Count the steps of a `ResidentRollout` in `sums` [B, N + 1], a `ring` with a row to spare, and the `count` of them."""
    num_steps, num_envs, num_agents = rollout.num_steps, rollout.num_envs, rollout.num_agents
    block = 128 if num_envs > 32 else 32
    num_blocks = triton.cdiv(num_envs, block)
    counts = torch.empty(num_steps * num_blocks, dtype=torch.int32, device=sums.device)
    flags, launch = (rollout.terminated, rollout.truncated), {"BLOCK": block, "num_warps": block // 32}
    ends_kernel[(num_blocks, num_steps)](*flags, counts, num_envs, num_blocks, N=num_agents, **launch)
    places = counts.cumsum(0)
    episodes_kernel[(num_blocks,)](
        rollout.reward, *flags, places, sums, ring, count, num_envs, num_blocks,
        N=num_agents, T=num_steps, CAPACITY=ring.shape[0] - 1, **launch,
    )  # fmt: skip
    count += places[-1]
