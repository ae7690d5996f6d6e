"""Hyper-parameters of the algorithms that correct for policy lag."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from relayrl.algorithms.on_policy_params import OnPolicyParams


class VTraceParams(OnPolicyParams):
    """What algorithms that correct for policy lag by V-trace share."""

    corrects_policy_lag = True

    lam: float = Field(1.0, ge=0, le=1, description="V-trace's trade of bias for variance; 1: as in the paper")
    rho_bar: float = Field(1.0, ge=1, description="where V-trace clips the importance weight of a TD error")
    c_bar: float = Field(1.0, ge=1, description="where V-trace clips that of what follows; at most rho_bar")
    train_vf_iters: int = Field(1, ge=1, description="value passes over the data")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")

    @model_validator(mode="after")
    def _c_bar_is_the_smaller(self) -> Self:
        if self.c_bar > self.rho_bar:
            raise ValueError(
                f"c_bar {self.c_bar} is larger than rho_bar {self.rho_bar}; V-trace needs c_bar <= rho_bar"
            )
        return self


class IMPALAParams(VTraceParams):
    """IMPALA: one pass of the policy over the data."""

    normalize_advantages: bool = Field(False, description="per update, over all rows, before they are weighed")


class APPOParams(VTraceParams):
    """APPO. An iteration is a pass over the data."""

    clip_ratio: float = Field(0.2, gt=0, description="how far the probability ratio may move")
    train_pi_iters: int = Field(4, ge=1, description="policy passes over the data, at most")
    train_vf_iters: int = Field(4, ge=1, description="value passes over the data")
    target_kl: float | None = Field(None, gt=0, description="policy passes stop at 1.5 times this; null: never")
    value_clip: float | None = Field(
        None, gt=0, description="how far the critic's output may move per update; null: freely"
    )
