"""Action distributions and the losses of a minibatch's rows, as tiles: what `models.heads` and `algorithms.losses` define.

Outputs are `[rows, W]`, the first K columns of which are the network's. A head is PARTS, the sizes of its choices one behind
the other (`CategoricalHead`, `MultiCategoricalHead`); none: a normal distribution (`GaussianHead`).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG_2PI = tl.constexpr(1.8378770664093453)
MASKED_LOGIT = tl.constexpr(-1e9)


@triton.jit
def choice_probabilities(logits, PARTS: tl.constexpr, BEGINS: tl.constexpr, W: tl.constexpr):
    """Log-probabilities and probabilities of every choice's options; 0 outside of all choices."""
    col = tl.arange(0, W)[None, :]
    logp = logits * 0.0
    p = logits * 0.0
    for i in tl.static_range(len(PARTS)):
        own = (col >= BEGINS[i]) & (col < BEGINS[i] + PARTS[i])
        top = tl.max(tl.where(own, logits, float("-inf")), 1)[:, None]
        weight = tl.where(own, tl.exp(tl.where(own, logits - top, 0.0)), 0.0)
        total = tl.sum(weight, 1)[:, None]
        logp = tl.where(own, logits - top - tl.log(total), logp)
        p = tl.where(own, weight / total, p)
    return logp, p


@triton.jit
def per_part(x, PARTS: tl.constexpr, BEGINS: tl.constexpr, W: tl.constexpr):
    """Sums over each choice, in all of its columns."""
    col = tl.arange(0, W)[None, :]
    sums = x * 0.0
    for i in tl.static_range(len(PARTS)):
        own = (col >= BEGINS[i]) & (col < BEGINS[i] + PARTS[i])
        sums = tl.where(own, tl.sum(tl.where(own, x, 0.0), 1)[:, None], sums)
    return sums


@triton.jit
def chosen(ACTION, row, is_row, PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, W: tl.constexpr):
    """[rows, W] whether a column is the option that was chosen."""
    col = tl.arange(0, W)[None, :]
    hot = (col < 0) & is_row[:, None]
    for i in tl.static_range(len(PARTS)):
        option = tl.load(ACTION + row * len(PARTS) + i, mask=is_row, other=0).to(tl.int32) - STARTS[i] + BEGINS[i]
        hot = hot | (col == option[:, None])
    return hot


@triton.jit
def masked_logits(y, MASK, row, is_row, K: tl.constexpr, W: tl.constexpr, HAS_MASK: tl.constexpr):
    """Logits, where forbidden options have `MASKED_LOGIT`; and which are allowed."""
    col = tl.arange(0, W)[None, :]
    is_allowed = (col < K) & is_row[:, None]
    if HAS_MASK:
        flag = tl.load(MASK + row[:, None] * K + col, mask=is_allowed, other=1)
        is_allowed = flag.to(tl.int1)
        y = tl.where(is_allowed, y, MASKED_LOGIT)
    return y, is_allowed


@triton.jit
def normal_constants(P, log_std_at, SCALE, CENTER, K: tl.constexpr, W: tl.constexpr):
    """Scale, centre and log deviation of each action, in the environment's units."""
    col = tl.arange(0, W)
    scale = tl.load(SCALE + col, mask=col < K, other=1.0)
    center = tl.load(CENTER + col, mask=col < K, other=0.0)
    log_std = tl.load(P + log_std_at + col, mask=col < K, other=0.0) + tl.log(scale)
    return scale[None, :], center[None, :], log_std[None, :]


@triton.jit
def normal_log_prob(z, log_std, K: tl.constexpr, W: tl.constexpr):
    """[rows] of standardised actions, which are 0 beyond the first K."""
    col = tl.arange(0, W)[None, :]
    return tl.sum(-0.5 * z * z - tl.where(col < K, log_std, 0.0), 1) - 0.5 * LOG_2PI * K


@triton.jit
def surrogate_slope(logp, old_logp, advantage, clip_ratio, IS_CLIPPED: tl.constexpr):
    """The loss of each row and its derivative by log π(a): of −min(r Â, clip(r, 1 ± ε) Â), or of −log π(a) Â."""
    if IS_CLIPPED:
        ratio = tl.exp(logp - old_logp)
        kept = ratio * advantage
        moved = tl.minimum(tl.maximum(ratio, 1.0 - clip_ratio), 1.0 + clip_ratio) * advantage
        return -tl.minimum(kept, moved), tl.where(kept <= moved, -kept, 0.0)
    else:
        return -logp * advantage, -advantage


@triton.jit
def policy_slopes(
    y, row, is_row, P, log_std_at, ACTION, MASK, OLD_LOGP, ADVANTAGE, SCALE, CENTER, clip_ratio, entropy_coef,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, K: tl.constexpr, W: tl.constexpr,
    HAS_MASK: tl.constexpr, IS_CLIPPED: tl.constexpr,
):  # fmt: skip
    """Derivatives by the outputs and by the log deviations (both `[rows, W]`), and each row's loss, KL, entropy and whether it
    is clipped."""
    advantage = tl.load(ADVANTAGE + row, mask=is_row, other=0.0)
    old_logp = tl.load(OLD_LOGP + row, mask=is_row, other=0.0)
    col = tl.arange(0, W)[None, :]
    if len(PARTS) > 0:
        logits, is_allowed = masked_logits(y, MASK, row, is_row, K, W, HAS_MASK)
        logps, p = choice_probabilities(logits, PARTS, BEGINS, W)
        hot = chosen(ACTION, row, is_row, PARTS, BEGINS, STARTS, W)
        logp = tl.sum(tl.where(hot, logps, 0.0), 1)
        entropy = -tl.sum(p * logps, 1)
        loss, g = surrogate_slope(logp, old_logp, advantage, clip_ratio, IS_CLIPPED)
        dy = g[:, None] * (tl.where(hot, 1.0, 0.0) - p)
        dy += entropy_coef * p * (logps - per_part(p * logps, PARTS, BEGINS, W))
        dy = tl.where(is_allowed & (col < K), dy, 0.0)
        d_log_std = dy
    else:
        is_action = (col < K) & is_row[:, None]
        scale, center, log_std = normal_constants(P, log_std_at, SCALE, CENTER, K, W)
        action = tl.load(ACTION + row[:, None] * K + col, mask=is_action, other=0.0)
        narrow = tl.exp(-log_std)
        z = tl.where(is_action, (action - y * scale - center) * narrow, 0.0)
        logp = normal_log_prob(z, log_std, K, W)
        entropy = tl.sum(tl.where(is_action, log_std, 0.0), 1) + 0.5 * (1.0 + LOG_2PI) * K
        loss, g = surrogate_slope(logp, old_logp, advantage, clip_ratio, IS_CLIPPED)
        dy = tl.where(is_action, g[:, None] * z * narrow * scale, 0.0)
        d_log_std = tl.where(is_action, g[:, None] * (z * z - 1.0) - entropy_coef, 0.0)
    log_ratio = logp - old_logp
    ratio = tl.exp(log_ratio)
    kl = ratio - 1.0 - log_ratio
    is_clipped = tl.where(tl.abs(ratio - 1.0) > clip_ratio, 1.0, 0.0) if IS_CLIPPED else loss * 0.0
    sums = (loss, kl, entropy, is_clipped)
    return dy, d_log_std, sums


@triton.jit
def value_slope(value, old_value, target, clip, IS_CLIPPED: tl.constexpr):
    """The loss of each row and its derivative by the value: ½ (V − target)², or the larger of that and the clipped one's."""
    error = value - target
    if IS_CLIPPED:
        moved = value - old_value
        far = old_value + tl.minimum(tl.maximum(moved, -clip), clip) - target
        is_plain = error * error >= far * far
        slope = tl.where(is_plain, error, tl.where(tl.abs(moved) <= clip, far, 0.0))
        return 0.5 * tl.maximum(error * error, far * far), slope
    else:
        return 0.5 * error * error, error
