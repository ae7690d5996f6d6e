"""Hyper-parameters of algorithms that learn from replay. Free of torch: settings are read and refused in an instant."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from pydantic import Field

from relayrl.algorithms.on_policy_params import AlgorithmParams

MAX_BATCH = 1 << 24


class OffPolicyParams(AlgorithmParams):
    """What algorithms that learn from a replay buffer share."""

    is_on_policy = False

    gamma: float = Field(0.99, ge=0, le=1, description="discount")
    tau: float = Field(0.005, gt=0, le=1, description="share of the newest parameters that targets take over per step")
    actor_lr: float = Field(3e-4, gt=0, description="policy learning rate")
    critic_lr: float = Field(3e-4, gt=0, description="Q-networks' learning rate")
    batch_size: int = Field(128, ge=1, le=MAX_BATCH, description="transitions per gradient step")
    buffer_size: int = Field(50_000, ge=1, description="transitions kept")
    learning_starts: int = Field(128, ge=1, description="random steps before the first gradient step")
    update_interval: int = Field(1, ge=1, description="environment steps between updates")
    train_iters: int = Field(1, ge=1, description="gradient steps per update")
    random_shift: int = Field(0, ge=0, le=64, description="pixels that images are shifted by at random (DrQ: 4)")
    num_step_returns: int = Field(1, ge=1, description="rewards summed before bootstrapping")
    hindsight_ratio: float = Field(
        0.0, ge=0, description="transitions replayed with a goal that was met later, per real one: HER's k; 0: none"
    )
    priority_exponent: float = Field(0.0, ge=0, description="0: uniform replay; larger: by temporal-difference error")
    priority_correction: float = Field(
        0.4, ge=0, le=1, description="how far prioritised sampling is corrected for at first: β of Schaul et al., 2016"
    )
    priority_correction_end: float = Field(1.0, ge=0, le=1, description="what it moves to, linearly over the run")

    @property
    def replay_size(self) -> int | None:
        return self.buffer_size

    def with_replay_size(self, num_transitions: int) -> Self:
        return self.model_copy(update={"buffer_size": num_transitions})

    def correction_at(self, progress: float) -> float:
        """β when `progress` in [0, 1] of the run is over."""
        return self.priority_correction + progress * (self.priority_correction_end - self.priority_correction)


class DeterministicParams(OffPolicyParams):
    """What algorithms with a deterministic policy share."""

    @property
    @abstractmethod
    def action_noise(self) -> float:
        """Deviation of the noise that is added when acting, in units of half the action range."""


class DDPGParams(DeterministicParams):
    """DDPG."""

    noise_scale: float = Field(0.1, ge=0, description="exploration noise, in units of half the action range")
    update_interval: int = Field(50, ge=1, description="environment steps between updates")
    train_iters: int = Field(50, ge=1, description="gradient steps per update")

    @property
    def action_noise(self) -> float:
        return self.noise_scale


class MADDPGParams(DDPGParams):
    """MADDPG."""

    tau: float = Field(0.01, gt=0, le=1, description="share of the newest parameters that targets take over per step")
    buffer_size: int = Field(1_000_000, ge=1, description="transitions kept")
    traj_per_epoch: int = Field(8, ge=1, description="trajectories per update when they arrive one by one")

    @property
    def trajectories_per_epoch(self) -> int:
        return self.traj_per_epoch


class TD3Params(DeterministicParams):
    """TD3."""

    batch_size: int = Field(256, ge=1, le=MAX_BATCH, description="transitions per gradient step")
    buffer_size: int = Field(1_000_000, ge=1, description="transitions kept")
    exploration_noise: float = Field(0.1, ge=0, description="exploration noise, in units of half the action range")
    policy_noise: float = Field(0.2, ge=0, description="noise on target actions, in units of half the action range")
    noise_clip: float = Field(0.5, ge=0, description="bound of that noise")
    learning_starts: int = Field(25_000, ge=1, description="random steps before the first gradient step")
    policy_frequency: int = Field(2, ge=1, description="Q steps per step of the policy and of all targets")

    @property
    def action_noise(self) -> float:
        return self.exploration_noise


class SACParams(OffPolicyParams):
    """SAC."""

    learns_temperature: bool = Field(True, description="adapt the entropy's weight to `target_entropy`")
    init_temperature: float = Field(1.0, gt=0, description="the entropy's weight at the start")
    temperature_lr: float = Field(3e-4, gt=0, description="learning rate of that weight")
    target_entropy: float | None = Field(None, description="null: minus the number of action dimensions")


# The forms for several agents have the parameters of their base algorithm, but for MADDPG; upstream names each.
IDDPGParams = DDPGParams
ITD3Params = MATD3Params = TD3Params
ISACParams = MASACParams = SACParams
