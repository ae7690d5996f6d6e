"""Hyper-parameters of POCA."""

from __future__ import annotations

from pydantic import Field

from relayrl.algorithms.on_policy_params import PPOParams


class POCAParams(PPOParams):
    """POCA. An iteration is a pass over the data."""

    attention_size: int = Field(32, ge=1, le=1024, description="units of the critic's attention over the team")
    num_attention_heads: int = Field(2, ge=1, le=64, description="heads of the critic's attention over the team")
    train_pi_iters: int = Field(3, ge=1, description="policy passes over the data, at most")
    train_vf_iters: int = Field(3, ge=1, description="value passes over the data")
    lam: float = Field(0.95, ge=0, le=1, description="trade of bias for variance in the team's TD(λ) returns")
    target_kl: float | None = Field(None, gt=0, description="policy passes stop at 1.5 times this; null: never")
    num_minibatches: int = Field(4, ge=1, description="minibatches a pass; 1 uses the whole batch at once")
