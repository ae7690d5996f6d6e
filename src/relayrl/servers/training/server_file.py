"""The JSON configuration of a training server: the same file that agents read, with the addresses that both ends use.

    {
      "addresses": {"trajectories": "tcp://127.0.0.1:7776", "agent_listener": "tcp://127.0.0.1:7777"},
      "server": {"training": {"http": "127.0.0.1:9464", "save_interval_s": 30}}
    }

Actors say hello, send trajectories and fetch policies at `trajectories` (7776); new versions are announced at `agent_listener`
(7777). `model` (50051) and `scaling` (7778) are upstream's, which this server does not need; `inference` (7779) is for
`relayrl serve inference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relayrl.config.settings import parse_settings
from relayrl.errors import ConfigError
from relayrl.runtime.agents.client_config import read_client_config
from relayrl.servers.training.training_server import DEFAULT_BIND, TrainingServerSettings


def server_of_file(path: Path | None, overrides: Mapping[str, Any]) -> tuple[str, TrainingServerSettings]:
    """Where to listen, and the server's settings; `overrides` stand above the file."""
    if path is None:
        return DEFAULT_BIND, parse_settings(TrainingServerSettings, dict(overrides))
    config = read_client_config(path)
    own = config.server.get("training", {})
    if not isinstance(own, dict):
        raise ConfigError(f"{path}: server.training must be an object of settings")
    values = {"announce_bind": config.addresses.agent_listener, **own, **overrides}
    return config.addresses.trajectories, parse_settings(TrainingServerSettings, values)
