"""`SquashedGaussianHead.rsample` of a network's outputs, and the way back, in one launch each.

u = μ + σ ε,   a = tanh(u),   log π(a) = log N(u) − Σ log(1 − a²),   1 − a² = 4 e / (1 + e)² with e = exp(−2 |u|)
∂a / ∂u = 1 − a²,   ∂ log π / ∂u = 2 a,   ∂u / ∂ log σ = σ ε,   ∂ log π / ∂ log σ = 2 a σ ε − 1
"""

from __future__ import annotations

import triton
import triton.language as tl

from relayrl.models.heads.box_heads import LOG_2PI, LOG_STD_MAX, LOG_STD_MIN

LOWEST, HIGHEST = tl.constexpr(LOG_STD_MIN), tl.constexpr(LOG_STD_MAX)
HALF_LOG_2PI, LOG_2 = tl.constexpr(0.5 * LOG_2PI), tl.constexpr(0.6931471805599453)


@triton.jit
def drawn(OUT, NOISE, i, ok, a, A: tl.constexpr):
    """Of dimension a: noise, log deviation as the network has it and within its bounds, σ ε, a, and e."""
    noise = tl.load(NOISE + i * A + a, mask=ok, other=0.0)
    given = tl.load(OUT + i * 2 * A + A + a, mask=ok, other=0.0)
    log_std = tl.minimum(tl.maximum(given, LOWEST), HIGHEST)
    spread = tl.exp(log_std) * noise
    u = tl.load(OUT + i * 2 * A + a, mask=ok, other=0.0) + spread
    e = tl.exp(-2.0 * tl.abs(u))
    size = (1.0 - e) / (1.0 + e)
    return noise, given, log_std, spread, tl.abs(u), tl.where(u < 0.0, -size, size), e


@triton.jit
def draw_kernel(OUT, NOISE, ACTION, LOGP, num_rows, A: tl.constexpr, BLOCK: tl.constexpr):
    """ACTION [m, A] and LOGP [m] of OUT [m, 2 A]."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < num_rows
    logp = tl.zeros((BLOCK,), tl.float32)
    for a in tl.static_range(A):
        noise, _, log_std, _, distance, action, e = drawn(OUT, NOISE, i, ok, a, A)
        log_slope = 2.0 * (LOG_2 - distance - tl.log(1.0 + e))
        logp += -0.5 * noise * noise - log_std - HALF_LOG_2PI - log_slope
        tl.store(ACTION + i * A + a, action, mask=ok)
    tl.store(LOGP + i, logp, mask=ok)


@triton.jit
def slopes_kernel(OUT, NOISE, BY_ACTION, BY_LOGP, D_OUT, num_rows, A: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient by OUT."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < num_rows
    by_logp = tl.load(BY_LOGP + i, mask=ok, other=0.0)
    for a in tl.static_range(A):
        _, given, log_std, spread, _, action, e = drawn(OUT, NOISE, i, ok, a, A)
        by_action = tl.load(BY_ACTION + i * A + a, mask=ok, other=0.0)
        by_mean = 4.0 * e / ((1.0 + e) * (1.0 + e)) * by_action + by_logp * 2.0 * action
        by_log_std = tl.where(given == log_std, by_mean * spread - by_logp, 0.0)
        tl.store(D_OUT + i * 2 * A + a, by_mean, mask=ok)
        tl.store(D_OUT + i * 2 * A + A + a, by_log_std, mask=ok)
