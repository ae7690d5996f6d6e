"""Hyper-parameters of behavioral cloning."""

from __future__ import annotations

from pydantic import Field

from relayrl.algorithms.on_policy_params import AlgorithmParams, Schedule
from relayrl.algorithms.params import MAX_BATCH


class BCParams(AlgorithmParams):
    """BC. It learns from recorded trajectories only (`--from`)."""

    is_on_policy = True

    pi_lr: float = Field(1e-3, gt=0, description="policy learning rate")
    batch_size: int = Field(
        256, ge=1, le=MAX_BATCH, description="demonstrated actions per gradient step, of each group"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    max_grad_norm: float | None = Field(0.5, gt=0, description="gradient clipping; null: none")
    lr_schedule: Schedule = Field(Schedule.CONSTANT, description="constant; linear or cosine: to zero over the run")
    traj_per_epoch: int = Field(8, ge=1, description="trajectories per update when they arrive one by one")

    @property
    def trajectories_per_epoch(self) -> int:
        return self.traj_per_epoch
