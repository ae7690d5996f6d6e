"""Acting and values, each one launch: the forward pass, the draw from given noise with its log-probability, values of reward.

Nothing random happens here: discrete choices take one uniform number each (inverse CDF, `CategoricalHead.sample`), continuous
actions a standard normal one. Results go straight to the tensors that are passed, which may be columns of a rollout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from relayrl.accelerator.gpu.action_tiles import choice_probabilities, masked_logits, normal_constants, normal_log_prob
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel
from relayrl.accelerator.gpu.gradient_terms import HeadShape
from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision, activate, load_bias, load_features, load_tile
from relayrl.accelerator.gpu.wide import layered_gradients as layered

MAX_FUSED_WIDTH = {Precision.TF32: 128, Precision.BF16X3: 64, Precision.NEAR_FLOAT32: 64}
"""Width up to which one program passes through all layers: split numbers take twice the registers and shared memory."""
BLOCK, LAST_BLOCK = 64, 32
ROWS_AT_A_TIME = 1 << 18
"""Rows of which a wide network's hidden layers are kept at once."""


@triton.jit
def outputs_of_features(
    P,
    x,
    SIZES: tl.constexpr,
    WIDTHS: tl.constexpr,
    OFFSETS: tl.constexpr,
    IS_TANH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[rows, W] of one network, whose layers are loaded one after the other; `x` has a one behind the features."""
    DEPTH: tl.constexpr = len(SIZES) - 2
    w = load_tile(P, OFFSETS[0], SIZES[0], SIZES[1], WIDTHS[1], WIDTHS[0], 0)
    given = (activate(tl.dot(x, tl.trans(w), input_precision=PRECISION), IS_TANH),)
    for i in tl.static_range(1, DEPTH):
        w = load_tile(P, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1], WIDTHS[i], 1)
        b = load_bias(P, OFFSETS[i], SIZES[i], SIZES[i + 1], WIDTHS[i + 1])
        given = (activate(tl.dot(given[0], tl.trans(w), input_precision=PRECISION) + b[None, :], IS_TANH),)
    last = load_tile(P, OFFSETS[DEPTH], SIZES[DEPTH], SIZES[DEPTH + 1], WIDTHS[DEPTH], WIDTHS[DEPTH + 1], 2)
    b = load_bias(P, OFFSETS[DEPTH], SIZES[DEPTH], SIZES[DEPTH + 1], WIDTHS[DEPTH + 1])
    return tl.dot(given[0], last, input_precision=PRECISION) + b[None, :]


@triton.jit
def outputs(
    P, X, row, ok, SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    x = load_features(X, row, ok, SIZES[0], WIDTHS[0])
    return outputs_of_features(P, x, SIZES, WIDTHS, OFFSETS, IS_TANH, PRECISION)


@triton.jit
def store_draw(
    y, lane, ok, P, log_std_at, MASK, NOISE, SCALE, CENTER, ACTION, LOGP,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, HAS_MASK: tl.constexpr, K: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Draw actions and store them with their log-probabilities."""
    col = tl.arange(0, W)[None, :]
    if len(PARTS) > 0:
        logits, _ = masked_logits(y, MASK, lane, ok, K, W, HAS_MASK)
        logps, p = choice_probabilities(logits, PARTS, BEGINS, W)
        logp = tl.sum(logps * 0.0, 1)
        for i in tl.static_range(len(PARTS)):
            own = (col >= BEGINS[i]) & (col < BEGINS[i] + PARTS[i])
            up_to = tl.cumsum(tl.where(own, p, 0.0), 1)
            total = tl.max(up_to, 1)
            # from (0, total], compared strictly: neither rounding nor a draw of zero can pick a masked action
            draw = (1.0 - tl.load(NOISE + lane * len(PARTS) + i, mask=ok, other=0.0)) * total
            option = tl.sum((own & (up_to < draw[:, None])).to(tl.int32), 1)
            logp += tl.sum(tl.where(col == (option + BEGINS[i])[:, None], logps, 0.0), 1)
            tl.store(ACTION + lane * len(PARTS) + i, option + STARTS[i], mask=ok)
    else:
        is_action = (col < K) & ok[:, None]
        scale, center, log_std = normal_constants(P, log_std_at, SCALE, CENTER, K, W)
        mean = y * scale + center
        noise = tl.load(NOISE + lane[:, None] * K + col, mask=is_action, other=0.0)
        action = mean + tl.exp(log_std) * noise
        z = tl.where(is_action, (action - mean) * tl.exp(-log_std), 0.0)
        logp = normal_log_prob(z, log_std, K, W)
        tl.store(ACTION + lane[:, None] * K + col, action, mask=is_action)
    tl.store(LOGP + lane, logp, mask=ok)


@triton.jit
def store_value(y, lane, ok, SHIFT, UNIT, VALUE, W: tl.constexpr):
    """Values in units of reward."""
    value = tl.sum(tl.where(tl.arange(0, W)[None, :] == 0, y, 0.0), 1)
    tl.store(VALUE + lane, value / tl.load(UNIT) + tl.load(SHIFT), mask=ok)


@Kernel
def act_kernel(
    ACTOR, X, MASK, NOISE, SCALE, CENTER, ACTION, LOGP, num_lanes,
    SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, IS_TANH: tl.constexpr,
    PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr, HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    lane = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    ok = lane < num_lanes
    DEPTH: tl.constexpr = len(SIZES) - 2
    K: tl.constexpr = SIZES[DEPTH + 1]
    W: tl.constexpr = WIDTHS[DEPTH + 1]
    log_std_at: tl.constexpr = OFFSETS[DEPTH] + (SIZES[DEPTH] + 1) * K
    y = outputs(ACTOR, X, lane, ok, SIZES, WIDTHS, OFFSETS, IS_TANH, PRECISION)
    store_draw(
        y, lane, ok, ACTOR, log_std_at, MASK, NOISE, SCALE, CENTER, ACTION, LOGP, PARTS, BEGINS, STARTS, HAS_MASK, K, W
    )


@Kernel
def values_kernel(
    CRITIC, X, SHIFT, UNIT, VALUE, num_rows, SIZES: tl.constexpr, WIDTHS: tl.constexpr, OFFSETS: tl.constexpr,
    IS_TANH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    ok = row < num_rows
    y = outputs(CRITIC, X, row, ok, SIZES, WIDTHS, OFFSETS, IS_TANH, PRECISION)
    store_value(y, row, ok, SHIFT, UNIT, VALUE, WIDTHS[len(SIZES) - 1])


@Kernel
def draw_kernel(
    ACTOR, H, MASK, NOISE, SCALE, CENTER, ACTION, LOGP, num_lanes, START: tl.constexpr, FAN_IN: tl.constexpr,
    K: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr, BEGINS: tl.constexpr, STARTS: tl.constexpr,
    HAS_MASK: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The actor's last layer and the draw, where hidden layers are launches of their own."""
    lane = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    y = layered.outputs_of(ACTOR, H, tl.program_id(0), num_lanes, START, FAN_IN, K, W, BM, BK, PRECISION)
    store_draw(
        y, lane, lane < num_lanes, ACTOR, START + (FAN_IN + 1) * K, MASK, NOISE, SCALE, CENTER, ACTION, LOGP,
        PARTS, BEGINS, STARTS, HAS_MASK, K, W,
    )  # fmt: skip


@Kernel
def last_value_kernel(
    CRITIC, H, SHIFT, UNIT, VALUE, num_lanes, START: tl.constexpr, FAN_IN: tl.constexpr, K: tl.constexpr, W: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The critic's last layer, likewise."""
    lane = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    y = layered.outputs_of(CRITIC, H, tl.program_id(0), num_lanes, START, FAN_IN, K, W, BM, BK, PRECISION)
    store_value(y, lane, lane < num_lanes, SHIFT, UNIT, VALUE, W)


class ForwardPlan:
    """Runs one network over rows, without gradients."""

    def __init__(self, shape: MLPShape, precision: Precision) -> None:
        self._shape, self._precision = shape, precision.value
        width = max(shape.widths)
        self._is_fused = width <= MAX_FUSED_WIDTH[precision]
        self._warps = 4 if width <= 64 else 8

    def act(
        self,
        vector: Tensor,
        features: Tensor,
        mask: Tensor | None,
        noise: Tensor,
        head: HeadShape,
        scales: tuple[Tensor | None, Tensor | None],
        out: tuple[Tensor, Tensor],
    ) -> None:
        """Write actions and log-probabilities to `out`."""
        lanes, has_mask = features.shape[0], {"HAS_MASK": mask is not None}
        if self._is_fused:
            act_kernel[(triton.cdiv(lanes, BLOCK),)](
                vector, features, mask, noise, *scales, *out, lanes, **self._whole, **head.constants, **has_mask
            )
            return
        seen = self._hidden_outputs(vector, features)
        draw_kernel[(triton.cdiv(lanes, LAST_BLOCK),)](
            vector, seen, mask, noise, *scales, *out, lanes, **self._last, **head.constants, **has_mask
        )

    def values(self, vector: Tensor, features: Tensor, moments: tuple[Tensor, Tensor], out: Tensor) -> None:
        """Write values to `out`; `moments` are shift and scale of the return normaliser."""
        rows = features.shape[0]
        if self._is_fused:
            values_kernel[(triton.cdiv(rows, BLOCK),)](vector, features, *moments, out, rows, **self._whole)
            return
        for first in range(0, rows, ROWS_AT_A_TIME):
            piece = features[first : first + ROWS_AT_A_TIME]
            seen, num_rows = self._hidden_outputs(vector, piece), piece.shape[0]
            last_value_kernel[(triton.cdiv(num_rows, LAST_BLOCK),)](
                vector, seen, *moments, out[first : first + ROWS_AT_A_TIME], num_rows, **self._last
            )

    def _hidden_outputs(self, vector: Tensor, x: Tensor) -> Tensor:
        shape, rows = self._shape, x.shape[0]
        for i, fan_out in enumerate(shape.sizes[1:-1]):
            hidden = torch.empty((rows, fan_out), device=x.device)
            bn = min(64, max(16, triton.next_power_of_2(fan_out)))
            layered.layer_kernel[(triton.cdiv(rows, 64), triton.cdiv(fan_out, bn))](
                vector, x, None, hidden, rows, START=shape.offsets[i], FAN_IN=shape.sizes[i], FAN_OUT=fan_out,
                IS_GATHERED=False, IS_TANH=shape.is_tanh, BM=64, BN=bn, BK=32, PRECISION=self._precision, num_stages=3,
            )  # fmt: skip
            x = hidden
        return x

    @property
    def _whole(self) -> dict[str, Any]:
        launch = {"BLOCK": BLOCK, "PRECISION": self._precision, "num_warps": self._warps}
        return {**self._shape.constants, **launch}

    @property
    def _last(self) -> dict[str, Any]:
        shape = self._shape
        return {
            "START": shape.offsets[-1], "FAN_IN": shape.sizes[-2], "K": shape.sizes[-1], "W": shape.widths[-1],
            "BM": LAST_BLOCK, "BK": 32, "PRECISION": self._precision,
        }  # fmt: skip
