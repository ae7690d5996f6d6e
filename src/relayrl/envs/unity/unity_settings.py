"""The options of a Unity environment, `environment.options`."""

from __future__ import annotations

from pydantic import Field, field_validator

from relayrl.config.settings import Settings
from relayrl.envs.unity.side_channels import EngineSettings

EDITOR, EDITOR_PORT = "editor", 5004


class UnitySettings(Settings):
    """How simulators are launched and listened to, and how their agents become environments."""

    base_port: int = Field(
        5005, ge=1, le=65535, description="simulator k is listened to on base_port + k, or the next port that is free"
    )
    host: str = Field("localhost", description="the address to listen on; others than localhost let the network in")
    seed: int = Field(
        0, ge=0, lt=1 << 31, description="simulator k gets seed + k when it starts; a reset does not seed Unity"
    )
    args: list[str] = Field(default_factory=list, description="more arguments for the executable")
    no_graphics: bool = Field(False, description="launch it with -nographics -batchmode")
    log_dir: str | None = Field(
        None, description="folder of the simulators' logs; null: a temporary one, which is kept where a simulator fails"
    )
    num_areas: int = Field(1, ge=1, le=4096, description="copies that the scene's TrainingAreaReplicator makes")
    areas: int | None = Field(
        None, ge=1, description="environments that a scene is taken for; null: by the numbers of its groups and agents"
    )
    agents_per_area: int | dict[str, int] | None = Field(
        None,
        description="the most agents in an area at once, or that by behaviour; null: as many as were seen at first",
    )
    warm_up: int = Field(
        10,
        ge=0,
        le=10_000,
        description="exchanges with idle actions at the start, which show all behaviours and agents",
    )
    parameters: dict[str, float] = Field(default_factory=dict, description="environment parameters of the scene")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="time scale, window and frame rates")

    @field_validator("agents_per_area")
    @classmethod
    def _positive(cls, value: int | dict[str, int] | None) -> int | dict[str, int] | None:
        numbers = value.values() if isinstance(value, dict) else [] if value is None else [value]
        if any(number < 1 for number in numbers):
            raise ValueError("an area has at least one agent")
        return value


def port_of(name: str) -> int | None:
    """The port that a simulator of somebody else's connects to, in `unity:5004` or `unity:editor`; None for a path."""
    if name == EDITOR:
        return EDITOR_PORT
    return int(name) if name.isascii() and name.isdigit() and 0 < int(name) < 65536 else None
