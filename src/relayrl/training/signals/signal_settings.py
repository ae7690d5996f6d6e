"""Settings of reward signals: what each has in the run's settings, and the options of the built-in ones.

torch is not imported: settings are read by commands that train nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_serializer

from relayrl.config.passwords import without_password
from relayrl.config.settings import Settings
from relayrl.models.network_settings import (
    MAX_HIDDEN_LAYERS,
    MAX_UNITS,
    Activation,
    EncoderKind,
    ImageAxes,
    NetworkSettings,
)

EXTRINSIC = "extrinsic"
"""The name of the environment's own reward among the signals."""


class RewardSignalSettings(Settings):
    """One reward signal of a run."""

    strength: float = Field(
        1.0, allow_inf_nan=False, description="what the signal is multiplied with before it is added to the reward"
    )
    gamma: float | None = Field(
        None, ge=0.0, le=1.0, description="the signal's discount, which must be the algorithm's; null: that one"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="keyword arguments for the signal itself"
    )

    @field_serializer("options", when_used="json")
    def _hide_passwords(self, options: dict[str, Any]) -> dict[str, Any]:
        """What is stored, compared and shown has no password: `demo_path` may be a database."""
        return {key: without_password(value) if isinstance(value, str) else value for key, value in options.items()}


class SignalNetworkSettings(Settings):
    """The networks of a built-in signal."""

    hidden_sizes: tuple[Annotated[int, Field(ge=1, le=MAX_UNITS)], ...] = Field(
        (128, 128), max_length=MAX_HIDDEN_LAYERS, description="units of each hidden layer"
    )
    activation: Activation = Field(Activation.RELU, description="tanh or relu")
    encoder: EncoderKind = Field(EncoderKind.SIMPLE, description="convolutions of images, as in `network.encoder`")
    encoder_size: int = Field(128, ge=1, le=MAX_UNITS, description="features that the encoder makes of an image")
    image_layout: ImageAxes = Field(ImageAxes.AUTO, description="as in `network.image_layout`")

    def whole(self) -> NetworkSettings:
        """The same as settings of a policy's networks."""
        return NetworkSettings(**self.model_dump())


class LearningSettings(Settings):
    """Options of all signals that learn."""

    learning_rate: float = Field(3e-4, gt=0.0, le=1.0, description="step size of Adam")
    batch_size: int = Field(256, ge=1, description="rows of a gradient step; a smaller rollout makes one step")
    num_epochs: int = Field(1, ge=1, le=1000, description="passes over every rollout")
    network: SignalNetworkSettings = Field(default_factory=SignalNetworkSettings, description="the signal's networks")


class RndSettings(LearningSettings):
    """Options of `rnd`."""

    learning_rate: float = Field(1e-4, gt=0.0, le=1.0, description="step size of Adam")
    embedding_size: int = Field(64, ge=1, le=MAX_UNITS, description="numbers that the predictor predicts")


class CuriositySettings(LearningSettings):
    """Options of `curiosity`."""

    embedding_size: int = Field(64, ge=1, le=MAX_UNITS, description="features of an observation")
    forward_share: float = Field(
        0.2, ge=0.0, le=1.0, description="weight of the forward model's loss; the inverse model's has the rest"
    )


class GailSettings(LearningSettings):
    """Options of `gail`."""

    demo_path: str = Field(
        min_length=1, description="demonstrations: URL of a sink, a folder, or a file; ML-Agents' .demo files too"
    )
    use_actions: bool = Field(
        False, description="tell demonstrations by observation and action, not by observation alone"
    )
    use_vail: bool = Field(False, description="a variational bottleneck in the discriminator")
    gradient_penalty: float = Field(
        10.0, ge=0.0, allow_inf_nan=False, description="weight of the gradient penalty; 0: none"
    )
    bottleneck_size: int = Field(128, ge=1, le=MAX_UNITS, description="numbers of the bottleneck's code")
    mutual_information: float = Field(
        0.5,
        ge=0.0,
        allow_inf_nan=False,
        description="nats that the code may hold of a step, which the weight beta adapts to",
    )
    beta_learning_rate: float = Field(5e-4, ge=0.0, allow_inf_nan=False, description="how fast beta adapts")
