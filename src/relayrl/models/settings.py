"""The shape of a policy's networks."""

from __future__ import annotations

from enum import Enum

from pydantic import Field

from relayrl.config.settings import Settings


class Activation(Enum):
    """The non-linearity between hidden layers."""

    TANH = "tanh"
    RELU = "relu"


class NetworkSettings(Settings):
    """Networks of one policy group; actor and critic have one of this shape each."""

    hidden_sizes: tuple[int, ...] = Field((128, 128), description="units of each hidden layer")
    activation: Activation = Field(Activation.TANH, description="tanh or relu")
    log_std_init: float = Field(0.0, description="initial log standard deviation, in units of half the action range")
    kernel: str | None = Field(None, description="a network plugin instead of perceptrons, by its name")
    normalize_observations: bool = Field(False, description="running mean and variance, kept inside the policy")
