"""The client's configuration: a JSON file of these settings, every key optional, unknown ones refused with a hint.

    {"log_level": "debug", "router_scale": 2, "max_traj_length": 500, "sink": {"urls": ["arrow:runs/experience"]}}

`LIVE_KEYS` are applied while the agent runs; the others are read when it starts.

Not its job: noticing that a file has changed (`config_watcher`) or applying the change (`client_coordinator`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from relayrl.config.settings import Settings, parse_settings
from relayrl.errors import ConfigError
from relayrl.observability.logs import LogLevel


class AddressSettings(Settings):
    """Where a training server listens; used by the agents that talk to one."""

    model: str = Field("tcp://127.0.0.1:50051", description="policies are published here")
    trajectories: str = Field("tcp://127.0.0.1:7776", description="trajectories are sent here")
    agent_listener: str = Field("tcp://127.0.0.1:7777", description="agents introduce themselves here")
    scaling: str = Field("tcp://127.0.0.1:7778", description="scaling is coordinated here")
    inference: str = Field("tcp://127.0.0.1:7779", description="actions are asked for here")


class RouterBufferSettings(Settings):
    """How much may wait between actors and sinks before actors have to wait."""

    max_trajectories_per_actor: int = Field(1000, ge=1, description="unflushed trajectories of one actor")
    max_bytes: int = Field(1 << 30, ge=1, description="unflushed bytes of one router")
    push_back_timeout_s: float = Field(30.0, ge=0, description="longest wait of a request for room; then it raises")


class SinkConfig(Settings):
    """Where trajectories go."""

    urls: tuple[str, ...] = Field((), description="sinks; each trajectory goes to all of them; empty keeps none")
    flush_interval_s: float = Field(1.0, gt=0, description="trajectories are durable after about this time")
    max_write_trajectories: int = Field(256, ge=1, description="most trajectories of one write")
    retry_delay_s: float = Field(0.1, gt=0, description="wait after a failure; doubles with each up to 5 s")
    settings: dict[str, Any] = Field(default_factory=dict, description="keys of relayrl.extend.SinkSettings")

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.settings:  # imported only where it is needed: it loads pyarrow
            from relayrl.sinks.sink_settings import SinkSettings

            parse_settings(SinkSettings, self.settings)
        return self


class BatchingSettings(Settings):
    """How requests of many threads share forward passes."""

    max_rows: int = Field(1024, ge=1, description="most observations in one forward pass of several requests")
    request_timeout_s: float = Field(30.0, gt=0, description="longest wait of a request for another's forward pass")


class ClientConfig(Settings):
    """Everything that the client's JSON file may say."""

    addresses: AddressSettings = AddressSettings()
    config_polling_s: float = Field(10.0, gt=0, description="how often the file is looked at")
    log_level: LogLevel = Field(LogLevel.INFO, description="debug, info, warning or error")
    router_scale: int = Field(1, ge=1, description="routers, each a thread with sinks of its own")
    max_traj_length: int = Field(1000, ge=1, description="a longer trajectory is cut into fragments")
    router_buffer: RouterBufferSettings = RouterBufferSettings()
    sink: SinkConfig = SinkConfig()
    batching: BatchingSettings = BatchingSettings()
    server: dict[str, Any] = Field(
        default_factory=dict, description="settings of the servers that read the same file; agents leave them alone"
    )
    shutdown_deadline_s: float = Field(30.0, gt=0, description="time for shutdown() to flush every sink")


LIVE_KEYS = frozenset(
    {
        "batching",
        "config_polling_s",
        "log_level",
        "max_traj_length",
        "router_buffer",
        "router_scale",
        "shutdown_deadline_s",
        "sink",
    }
)
"""Keys whose change applies while the agent runs."""


def read_client_config(path: Path) -> ClientConfig:
    """The configuration in a file; `ConfigError` with one line that says what is wrong with it."""
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold one JSON object, not a {type(values).__name__}")
    return parse_settings(ClientConfig, values)


def changed_keys(old: ClientConfig, new: ClientConfig) -> dict[str, Any]:
    """Top-level keys whose values differ, with the new values."""
    return {name: getattr(new, name) for name in ClientConfig.model_fields if getattr(old, name) != getattr(new, name)}
