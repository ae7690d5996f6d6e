"""The shape of a policy's networks."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field, model_validator

from relayrl.config.settings import Settings

MAX_UNITS = 1 << 16
MAX_HIDDEN_LAYERS = 15
"""The kernels take 16 layers, of which the last gives the output."""


class Activation(Enum):
    """The non-linearity between hidden layers."""

    TANH = "tanh"
    RELU = "relu"


class Initialization(Enum):
    """How the weights of layers begin."""

    ORTHOGONAL = "orthogonal"
    UNIFORM = "uniform"


class CriticInput(Enum):
    """What central critics see of their environment."""

    AUTO = "auto"
    JOINT_OBSERVATIONS = "joint_observations"
    STATE = "state"
    BOTH = "both"


class EncoderKind(Enum):
    """What images go through before the hidden layers."""

    NATURE_CNN = "nature_cnn"
    SIMPLE = "simple"
    RESNET = "resnet"
    MATCH3 = "match3"


class GoalConditioning(Enum):
    """What the goals among the observations do."""

    NONE = "none"
    HYPER = "hyper"


class ImageAxes(Enum):
    """Where the channels of images are."""

    AUTO = "auto"
    CHANNELS_FIRST = "channels_first"
    CHANNELS_LAST = "channels_last"
    FLAT = "flat"


class MemoryKind(Enum):
    """The recurrent cell."""

    LSTM = "lstm"
    GRU = "gru"


class MemorySettings(Settings):
    """What a recurrent policy remembers, and over how many steps it learns to."""

    kind: MemoryKind = Field(MemoryKind.LSTM, description="lstm or gru")
    size: int = Field(
        128, ge=1, le=MAX_UNITS, description="units of the cell; an lstm remembers two numbers a unit, a gru one"
    )
    sequence_length: int = Field(64, ge=1, le=1 << 20, description="steps that gradients go back through time, at most")


class NetworkSettings(Settings):
    """Networks of one policy group; actor and critic have hidden layers of this shape each."""

    hidden_sizes: tuple[Annotated[int, Field(ge=1, le=MAX_UNITS)], ...] = Field(
        (128, 128), max_length=MAX_HIDDEN_LAYERS, description="units of each hidden layer"
    )
    activation: Activation = Field(Activation.TANH, description="tanh or relu")
    initialization: Initialization = Field(
        Initialization.ORTHOGONAL,
        description="first weights: orthogonal, with small outputs of actors and zero biases; or uniform in ±1/√inputs, "
        "biases too, as torch's layers begin",
    )
    log_std_init: float = Field(
        0.0, allow_inf_nan=False, description="initial log standard deviation, in units of half the action range"
    )
    encoder: EncoderKind = Field(
        EncoderKind.NATURE_CNN,
        description="convolutions of images: nature_cnn (Mnih et al., 2015), simple (two layers), resnet (IMPALA's, dearer), "
        "match3 (for boards)",
    )
    encoder_size: int = Field(512, ge=1, le=MAX_UNITS, description="features that the encoder makes of an image")
    shared_encoder: bool = Field(
        True, description="actor and critic see images through one encoder; false, or a central critic: one each"
    )
    image_layout: ImageAxes = Field(
        ImageAxes.AUTO,
        description="where images have their channels: auto (height and width are the largest axes), channels_first, "
        "channels_last; flat: nothing is convolved",
    )
    kernel: str | None = Field(None, description="networks instead of MLPs: a plugin's name, or `module:name`")
    head: str | None = Field(
        None,
        description="the action distribution of on-policy algorithms instead of theirs: a plugin's name, or `module:name`",
    )
    goal_conditioning: GoalConditioning = Field(
        GoalConditioning.NONE,
        description="none: goals are observed like all else; hyper: they also give the weights of the last hidden layer. "
        "Goals are parts of the observation called `desired_goal` or `goal_signal…`",
    )
    critic_input: CriticInput = Field(
        CriticInput.AUTO,
        description="what critics of ma… algorithms see: joint_observations, state, both; "
        "auto: the environment's global state where it has one that is more than the observations, else joint_observations",
    )
    memory: MemorySettings | None = Field(None, description="a recurrent cell behind the hidden layers; null: none")
    normalize_observations: bool = Field(False, description="running mean and variance, kept inside the policy")

    @model_validator(mode="after")
    def _own_networks_see_goals_their_way(self) -> NetworkSettings:
        if self.kernel is not None and self.goal_conditioning is GoalConditioning.HYPER:
            raise ValueError("goal_conditioning: hyper is for the built-in networks; leave it out beside a kernel")
        return self
