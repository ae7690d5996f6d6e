"""How long a run is, how often it looks up from learning, and what it reports."""

from __future__ import annotations

from enum import Enum

from pydantic import Field, model_validator

from relayrl.config.settings import Settings
from relayrl.envs.environment_settings import EvaluationBounds
from relayrl.envs.rendering import VideoFormat

MAX_EPISODES = 1_000_000
ROWS_PER_RUN = 100
"""Rows of statistics of a run that says nothing else; fewer where it has fewer updates."""


class TrainerSettings(Settings):
    """The schedule of one run; all counts are environment steps, summed over environments."""

    max_steps: int = Field(
        500_000,
        ge=1,
        le=10**15,
        description="environment steps of the run, or the next multiple of num_envs; its last rollout is as short as needed",
    )
    time_horizon: int = Field(64, ge=1, le=1 << 24, description="steps of each environment per rollout")
    summary_freq: int = Field(
        default_factory=lambda known: max(1, known.get("max_steps", 1) // ROWS_PER_RUN),
        ge=1,
        description="steps between rows of statistics, at most one per rollout; not given: a hundredth of max_steps",
    )
    checkpoint_interval: int = Field(
        500_000, ge=1, description="steps between checkpoints; one is always kept at the end"
    )
    keep_checkpoints: int = Field(5, ge=1, description="newest checkpoints that are kept, besides the best")
    threaded: bool = Field(
        False, description="collect the next rollout while learning from the last; not repeatable bit for bit"
    )


class Opponent(Enum):
    """Who plays against the policies in an evaluation, without learning."""

    RANDOM = "random"
    PREVIOUS = "previous"


class EvaluationSettings(EvaluationBounds):
    """Episodes played without learning, in environments and with seeds of their own."""

    episodes: int = Field(
        20, ge=0, le=MAX_EPISODES, description="episodes at the end of the run, with the most likely actions; 0: none"
    )
    interval: int | None = Field(
        None, ge=1, description="environment steps between evaluations during the run; null: none"
    )
    interval_episodes: int = Field(10, ge=1, le=MAX_EPISODES, description="episodes of each evaluation during the run")
    max_envs: int | None = Field(
        None,
        ge=1,
        description="environments that evaluations play in at once; null: as many as training has, 20 at most",
    )
    video: VideoFormat | None = Field(
        None, description="gif or mp4: write the first episodes of evaluations into videos/ of the run directory"
    )
    video_interval: int | None = Field(
        None, ge=1, description="environment steps between videos; null: one of every evaluation"
    )
    video_envs: int = Field(1, ge=1, le=64, description="environments side by side in a video")
    target_return: float | None = Field(
        None, description="stop as soon as an evaluation during the run reaches this mean return; needs interval"
    )
    group: str | None = Field(
        None, description="group whose mean return policies are scored by; null: the mean over all agents"
    )
    agent: str | None = Field(None, description="agent whose return policies are scored by, instead of a group's")
    opponents: tuple[Opponent, ...] | None = Field(
        None,
        description="who plays the others: random, previous (the policies of the evaluation before); the first decides; "
        "null: random where the agents' returns cancel",
    )

    @model_validator(mode="after")
    def _one_scored(self) -> EvaluationSettings:
        if self.group is not None and self.agent is not None:
            raise ValueError("give evaluation.group or evaluation.agent, not both")
        return self

    @model_validator(mode="after")
    def _target_needs_interval(self) -> EvaluationSettings:
        if self.target_return is not None and self.interval is None:
            raise ValueError("target_return needs evaluations during the run; set evaluation.interval as well")
        return self


class StatisticsSettings(Settings):
    """Writers of statistics besides `progress.csv`."""

    tensorboard: bool = Field(True, description="write TensorBoard events into the run directory")
    wandb_project: str | None = Field(None, description="Weights & Biases project to log to; null: none")
    writers: tuple[str, ...] = Field((), description="names of installed plugins that take statistics")
