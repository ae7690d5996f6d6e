"""Settings of cloning beside reinforcement learning. Free of torch: settings are read by commands that train nothing."""

from __future__ import annotations

from pydantic import Field, field_serializer

from relayrl.config.passwords import without_password
from relayrl.config.settings import Settings


class BehavioralCloningSettings(Settings):
    """Cloning steps between the updates of a run, with ML-Agents' keys."""

    demo_path: str = Field(
        min_length=1,
        repr=False,
        description="demonstrations: URL of a sink, a folder, or a file; ML-Agents' .demo files too",
    )
    strength: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="learning rate of the cloning steps, as a multiple of the policy's"
    )
    steps: int = Field(0, ge=0, description="environment steps over which that rate falls linearly to 0; 0: it stays")
    batch_size: int = Field(256, ge=1, description="demonstrated actions per gradient step, of each group")
    num_epoch: int = Field(3, ge=1, le=1000, description="passes over the samples of an update")
    samples_per_update: int = Field(
        0, ge=0, description="demonstrated actions that every update passes over; 0: all there are"
    )
    pretrain_epochs: int = Field(
        0, ge=0, le=100_000, description="passes over all demonstrations before the first step of the run"
    )

    @field_serializer("demo_path", when_used="json")
    def _hide_password(self, url: str) -> str:
        """What is stored, compared and shown has no password."""
        return without_password(url)

    def factor(self, num_env_steps: int) -> float:
        """What the rate is multiplied with after so many steps."""
        return max(0.0, 1.0 - num_env_steps / self.steps) if self.steps else 1.0
