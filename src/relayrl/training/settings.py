"""How long a run is, and how often it looks up from learning."""

from __future__ import annotations

from pydantic import Field

from relayrl.config.settings import Settings


class TrainerSettings(Settings):
    """The schedule of one run; all counts are environment steps, summed over worlds."""

    max_steps: int = Field(500_000, ge=1, description="environment steps of the run; whole rollouts, never more")
    time_horizon: int = Field(64, ge=1, description="steps of each world per rollout")
    summary_freq: int = Field(50_000, ge=1, description="steps between rows of statistics")
    checkpoint_interval: int = Field(
        500_000, ge=1, description="steps between checkpoints; one is always kept at the end"
    )
    keep_checkpoints: int = Field(5, ge=1, description="newest checkpoints that are kept")


class EvaluationSettings(Settings):
    """The evaluation that ends a run."""

    episodes: int = Field(20, ge=0, description="episodes played with the most likely actions; 0: none")
