"""The options that all native environments share; each environment's own are beside its equations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from relayrl.config.settings import Settings


class NativeSettings(Settings):
    """How the arithmetic is done, and where."""

    dtype: Literal["float32", "float64"] = Field(
        "float32", description="arithmetic of the simulation; observations and rewards are float32 in either case"
    )
    device: str = Field(
        "cpu",
        description="cpu: NumPy arrays; anything else: torch tensors on that device (cuda, cuda:1; cpu:0 is torch's CPU)",
    )


class ParticleSettings(NativeSettings):
    """Options of all particle worlds."""

    max_cycles: int = Field(25, ge=1, description="steps after which an episode is truncated")
    continuous_actions: bool = Field(False, description="Box actions in [0, 1] instead of Discrete ones")
    dynamic_rescaling: bool = Field(True, description="pictures: bodies shrink when the camera zooms out")


class NeighbourSettings(ParticleSettings):
    """Options of the particle worlds in which agents may be short-sighted."""

    num_agent_neighbors: int | None = Field(
        None, ge=1, description="see only so many other agents, the nearest; missing ones are zeros; none: all"
    )
    num_landmark_neighbors: int | None = Field(
        None, ge=1, description="see only so many landmarks, the nearest; missing ones are zeros; none: all"
    )
