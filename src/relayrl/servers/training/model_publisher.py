"""The newest policies as ONNX files in memory, and their version numbers, which never go back.

A server that was killed goes on from a checkpoint, whose version is older than what actors have. They take newer versions only,
so numbers are reserved in a file before they are used, a thousand at a time: a resumed server begins behind all that may have
been announced.

Not its job: answering actors (`ingest`), or deciding when to publish (`remote_experience`).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from relayrl.engines.local.run_parts import RunParts
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import CheckpointError
from relayrl.models.exports.export import metadata_of
from relayrl.models.exports.onnx_template import OnnxTemplate
from relayrl.servers.training.training_metrics import TrainingMetrics
from relayrl.training.files.atomic_files import write_whole

RESERVED_VERSIONS = 1000


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """One group's policy as it goes to actors."""

    group: str
    version: int
    content: bytes
    sha256: str


class ServerState:
    """What outlives a server in its run directory besides checkpoints: who it is, and which versions it may have announced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        values: Mapping[str, Any] = {}
        if path.exists():
            try:
                values = json.loads(path.read_text())
                self.server_id, self.versions_below = UUID(values["server_id"]), int(values["versions_below"])
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{path} is damaged: {error}; begin a new run in another directory") from error
            return
        self.server_id, self.versions_below = uuid4(), 0

    def reserve(self, version: int) -> None:
        """Return when `version` may be announced."""
        if version < self.versions_below:
            return
        self.versions_below = (version // RESERVED_VERSIONS + 1) * RESERVED_VERSIONS
        values = {"server_id": str(self.server_id), "versions_below": self.versions_below}
        write_whole(self._path, (json.dumps(values) + "\n").encode())


class ModelPublisher:
    """Exports the run's policies and announces them. `current` may be called from any thread."""

    def __init__(
        self,
        parts: RunParts,
        settings: RunSettings,
        state: ServerState,
        metrics: TrainingMetrics,
        announce: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._parts, self._settings, self._state, self._metrics = parts, settings, state, metrics
        self._announce = announce
        self._templates = {name: OnnxTemplate(policy) for name, policy in parts.policies.items()}
        self._lock = threading.Lock()
        self._models: dict[str, PublishedModel] = {}

    @property
    def versions(self) -> dict[str, int]:
        """The newest version of every group."""
        with self._lock:
            return {name: model.version for name, model in self._models.items()}

    def current(self, group: str) -> PublishedModel | None:
        """The newest policy of a group; None where there is no such group."""
        with self._lock:
            return self._models.get(group)

    def publish(self) -> None:
        """Make the present policies the newest."""
        version = self._parts.trainer.policy_version
        self._state.reserve(version)
        models = {name: self._exported(name, version) for name in self._templates}
        with self._lock:
            self._models = models
        self._metrics.version.set(version)
        self._announce(dict.fromkeys(models, version))

    def _exported(self, name: str, version: int) -> PublishedModel:
        policy, trainer = self._parts.policies[name], self._parts.trainer
        metadata = metadata_of(
            policy,
            env=self._settings.env,
            algo=self._settings.algo,
            group=name,
            version=version,
            masked=self._parts.env.groups[name].masks_actions,
            is_warming_up=trainer.is_warming_up,
            environment=self._settings.environment.around(),
        )
        content = self._templates[name].filled(metadata)
        return PublishedModel(name, version, content, hashlib.sha256(content).hexdigest())
