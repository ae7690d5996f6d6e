"""What all hyper-parameters answer, and those of algorithms that learn from their own rollouts.

Free of torch, so that settings can be read and refused in an instant.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import ClassVar, Self

from pydantic import Field

from relayrl.config.settings import Settings


class Schedule(Enum):
    """How a learning rate moves over a run."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"

    def factor(self, progress: float) -> float:
        """What a rate is multiplied with when `progress` in [0, 1] of the run is over."""
        if self is Schedule.LINEAR:
            return 1.0 - progress
        return 0.5 * (1.0 + math.cos(math.pi * progress)) if self is Schedule.COSINE else 1.0


class AlgorithmParams(Settings):
    """What all algorithms' parameters answer."""

    is_on_policy: ClassVar[bool]
    """Whether what was collected is learned from at once, or kept in a replay."""

    @property
    def replay_size(self) -> int | None:
        """Transitions kept to be learned from again; None: rollouts are learned from once."""
        return None

    def with_replay_size(self, num_transitions: int) -> Self:
        """The same with another `replay_size`; where there is no replay, the same."""
        del num_transitions
        return self

    def with_policy_lag_bound(self, max_policy_lag: int) -> Self:
        """The same with `max_policy_lag`, for whoever feeds data of older policies; itself where the algorithm learns from
        such data as it should, or where the user set a bound."""
        del max_policy_lag
        return self

    @property
    def trajectories_per_epoch(self) -> int:
        """Trajectories per update when they arrive one by one."""
        return 1


class OnPolicyParams(AlgorithmParams):
    """What algorithms that learn from their own rollouts share."""

    is_on_policy = True
    corrects_policy_lag: ClassVar[bool] = False
    """Whether learning from what older policies did is corrected for."""

    gamma: float = Field(0.99, ge=0, le=1, description="discount")
    lam: float = Field(0.97, ge=0, le=1, description="GAE's trade of bias for variance")
    pi_lr: float = Field(3e-4, gt=0, description="policy learning rate")
    vf_lr: float = Field(1e-3, gt=0, description="value learning rate")
    train_vf_iters: int = Field(80, ge=1, description="value passes over the data")
    traj_per_epoch: int = Field(8, ge=1, description="trajectories per update when they arrive one by one")
    num_minibatches: int = Field(1, ge=1, description="minibatches a pass; 1 uses the whole batch at once")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    value_coef: float = Field(1.0, ge=0, description="weight of the value's gradient in a shared encoder of images")
    max_grad_norm: float | None = Field(0.5, gt=0, description="gradient clipping per network; null: none")
    normalize_advantages: bool = Field(True, description="per update, over all rows")
    normalize_returns: bool = Field(False, description="the critic learns returns scaled by running moments")
    lr_schedule: Schedule = Field(Schedule.CONSTANT, description="constant; linear or cosine: to zero over the run")
    max_policy_lag: int | None = Field(
        None, ge=0, description="steps of policies older than so many versions are dropped, and counted; null: none"
    )

    def with_policy_lag_bound(self, max_policy_lag: int) -> Self:
        if self.corrects_policy_lag or "max_policy_lag" in self.model_fields_set:
            return self
        return self.model_copy(update={"max_policy_lag": max_policy_lag})

    @property
    def trajectories_per_epoch(self) -> int:
        return self.traj_per_epoch


class PPOParams(OnPolicyParams):
    """PPO. An iteration is a pass over the data."""

    clip_ratio: float = Field(0.2, gt=0, description="how far the probability ratio may move")
    train_pi_iters: int = Field(80, ge=1, description="policy passes over the data, at most")
    target_kl: float | None = Field(0.01, gt=0, description="policy passes stop at 1.5 times this; null: never")
    value_clip: float | None = Field(
        None, gt=0, description="how far the critic's output may move per update; null: freely"
    )


class REINFORCEParams(OnPolicyParams):
    """REINFORCE, with or without a learned baseline."""

    with_vf_baseline: bool = Field(False, description="subtract a learned value, and estimate advantages with lam")
    gamma: float = Field(0.98, ge=0, le=1, description="discount")


# The forms for several agents have the parameters of their base algorithm; upstream names each.
IREINFORCEParams = MAREINFORCEParams = REINFORCEParams
IPPOParams = MAPPOParams = PPOParams
