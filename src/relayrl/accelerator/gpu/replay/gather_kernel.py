"""Transitions drawn from a replay on a GPU in one launch: the twin of `ResidentReplay.drawn`, for narrow columns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_WIDTH = 512
"""Numbers of a row in one column; wider ones keep torch's gathers busy enough."""
BLOCK = 64


@triton.jit
def copy_rows(FROM, TO, row, i, ok, W: tl.constexpr, BW: tl.constexpr):
    c = tl.arange(0, BW)[None, :]
    is_inside = ok[:, None] & (c < W)
    tl.store(TO + i[:, None] * W + c, tl.load(FROM + row[:, None] * W + c, mask=is_inside, other=0), mask=is_inside)


@triton.jit
def gather_kernel(
    DRAWS, NUM_ROWS, OBS, ACTION, REWARD, NEXT_OBS, TERMINATED, ROWS, TO_OBS, TO_ACTION, TO_REWARD, TO_NEXT_OBS, DISCOUNT,
    num_draws, gamma, OBSERVED: tl.constexpr, ACTED: tl.constexpr, AGENTS: tl.constexpr, BO: tl.constexpr, BA: tl.constexpr,
    BN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows are those of DRAWS [m], uniform in [0, 1); widths are those of all agents side by side."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < num_draws
    row = (tl.load(DRAWS + i, mask=ok, other=0.0) * tl.load(NUM_ROWS)).to(tl.int64)
    tl.store(ROWS + i, row, mask=ok)
    copy_rows(OBS, TO_OBS, row, i, ok, OBSERVED, BO)
    copy_rows(ACTION, TO_ACTION, row, i, ok, ACTED, BA)
    copy_rows(REWARD, TO_REWARD, row, i, ok, AGENTS, BN)
    copy_rows(NEXT_OBS, TO_NEXT_OBS, row, i, ok, OBSERVED, BO)
    n = tl.arange(0, BN)[None, :]
    is_inside = ok[:, None] & (n < AGENTS)
    terminated = tl.load(TERMINATED + row[:, None] * AGENTS + n, mask=is_inside, other=0)
    tl.store(DISCOUNT + i[:, None] * AGENTS + n, tl.where(terminated != 0, 0.0, gamma), mask=is_inside)


def gather(
    columns: Mapping[str, Tensor], draws: Tensor, num_rows: Tensor, gamma: float
) -> tuple[Tensor, dict[str, Tensor]] | None:
    """Which rows were drawn, and the columns of a `GroupTransitions`; None where a column is too wide."""
    rings = [columns[name] for name in ("obs", "action", "reward", "next_obs", "terminated")]
    widths = [ring[0, 0].numel() for ring in rings]
    if max(widths) > MAX_WIDTH or widths[2] != widths[4]:
        return None
    rows = torch.empty_like(draws, dtype=torch.int64)
    found = [ring.new_empty((len(draws), *ring.shape[2:])) for ring in rings[:4]]
    discount = torch.empty_like(found[2])
    observed, acted, agents = widths[:3]
    gather_kernel[(triton.cdiv(len(draws), BLOCK),)](
        draws, num_rows, *rings, rows, *found, discount, len(draws), gamma, OBSERVED=observed, ACTED=acted, AGENTS=agents,
        BO=triton.next_power_of_2(observed), BA=triton.next_power_of_2(acted), BN=triton.next_power_of_2(agents),
        BLOCK=BLOCK,
    )  # fmt: skip
    return rows, dict(zip(("obs", "action", "reward", "next_obs", "discount"), [*found, discount], strict=True))
