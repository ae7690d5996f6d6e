"""A directory of models: versions of every group's policy, which of them is deployed, and the record of how it came to that.

    STORE/group-NAME/VERSION.onnx     models, each written whole or not at all
    STORE/history.jsonl               one line per event, appended and fsynced; the state is what they add up to

The record is the state: there is no second file that a kill could leave behind it. A last line that a kill tore is dropped.
Processes that change the store take turns by a lock on the record; a server sees what a command changed when it looks again.

Not its job: loading models (`served_models`) and judging canaries (`canary_watch`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from relayrl.errors import CheckpointError, ConfigError, ModelRefusedError
from relayrl.models.exports.exported import PolicyMetadata
from relayrl.models.exports.model_validation import validate_model
from relayrl.runtime.remote.deployment import Deployment
from relayrl.training.files.atomic_files import disk_error, sync_directory, write_whole
from relayrl.training.files.file_names import file_name_part

HISTORY = "history.jsonl"


class StoreEvent(Enum):
    """What a line of the record says."""

    ADDED = "added"
    PROMOTED = "promoted"
    CANARY = "canary"
    ROLLED_BACK = "rolled_back"


@dataclass(slots=True)
class StoredGroup:
    """One group's versions and what is deployed of them."""

    versions: dict[int, str] = field(default_factory=dict)
    """SHA-256 of each version's file."""
    stable: int | None = None
    former: list[int] = field(default_factory=list)
    """Versions that were stable before, oldest first."""
    canary: int | None = None
    share: float = 0.0
    withdrawn: set[int] = field(default_factory=set)
    """Versions that were rolled back and not promoted since."""
    number: int = 0

    @property
    def deployment(self) -> Deployment | None:
        """What actors act with; None before anything was promoted."""
        return None if self.stable is None else Deployment(self.number, self.stable, self.canary, self.share)

    def apply(self, event: StoreEvent, line: dict[str, Any]) -> None:
        version = int(line["version"])
        if event is StoreEvent.ADDED:
            self.versions[version] = str(line["sha256"])
            return
        self.number += 1
        if event is StoreEvent.PROMOTED:
            if self.stable is not None and self.stable != version:
                self.former.append(self.stable)
            self.stable, self.canary, self.share = version, None, 0.0
            self.withdrawn.discard(version)
        elif event is StoreEvent.CANARY:
            self.canary, self.share = version, float(line["share"])
        else:
            self.withdrawn.add(version)
            if version == self.canary:
                self.canary, self.share = None, 0.0
            else:
                self.stable = int(line["to"])
                self.former = self.former[: self.former.index(self.stable)] if self.stable in self.former else []


class ModelStore:
    """See the module's docstring. One object is used by one thread at a time; processes may share the directory."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self._history = path / HISTORY
        self.groups: dict[str, StoredGroup] = {}
        self._read_bytes = 0
        if create:
            self._create()
        elif not self._history.exists():
            raise ConfigError(f"{path} is no model store; relayrl serve inference MODEL --store {path} makes one")
        self.refresh()

    def refresh(self) -> bool:
        """Read what was appended to the record since; gives whether there was anything."""
        with self._history.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._apply(line)
        self._read_bytes += len(whole)
        return bool(whole)

    def group(self, name: str | None) -> tuple[str, StoredGroup]:
        """A group by name; the only one without a name."""
        if name is None:
            if len(self.groups) != 1:
                raise ConfigError(f"the store has the groups {', '.join(sorted(self.groups)) or '(none)'}; name one")
            name = next(iter(self.groups))
        if name not in self.groups:
            raise ConfigError(f"the store has no group {name!r}; it has {', '.join(sorted(self.groups)) or 'none'}")
        return name, self.groups[name]

    def file(self, group: str, version: int) -> Path:
        """Where a version's model is."""
        return self.path / f"group-{file_name_part(group)}" / f"{version}.onnx"  # a group may be called ".."

    def read(self, group: str, version: int) -> bytes:
        """A version's model; `CheckpointError` if the file is not what was added."""
        path = self.file(group, version)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}; add the model again") from error
        if hashlib.sha256(content).hexdigest() != self.groups[group].versions.get(version):
            raise CheckpointError(f"{path} is not the file that was added; add the model again")
        return content

    def add(self, content: bytes, source: str, *, needs_probe: bool = False) -> tuple[str, int, bool]:
        """Validate a model and keep it; gives its group, its version, and whether it is new."""
        metadata = validate_model(content, needs_probe=needs_probe)
        name, version, digest = metadata.group, metadata.policy_version, hashlib.sha256(content).hexdigest()
        with self._changing():
            known = self.groups.get(name, StoredGroup())
            if known.versions.get(version) == digest and self.file(name, version).exists():
                return name, version, False
            if known.versions.get(version) not in (None, digest):
                raise ModelRefusedError(
                    f"{source} is another model than version {version} of group {name!r} in {self.path}; "
                    "give it another policy version"
                )
            if version not in known.versions:
                self._check_layout(name, known, metadata)
            write_whole(self.file(name, version), content)
            self._append(StoreEvent.ADDED, name, version, sha256=digest, bytes=len(content), source=source)
        return name, version, True

    def promote(self, group: str, version: int, by: str) -> None:
        """Let all actors of a group act with a version; a canary ends."""
        with self._changing():
            stored = self._stored(group, version)
            if stored.stable != version or stored.canary is not None:
                self._append(StoreEvent.PROMOTED, group, version, by=by)

    def begin_canary(self, group: str, version: int, share: float, by: str) -> None:
        """Let a share of a group's actors act with a version, in place of a canary there is."""
        if not 0.0 < share < 1.0:
            raise ConfigError(f"a canary's share is between 0% and 100%, not {share:.0%}; use promote for all actors")
        with self._changing():
            stored = self._stored(group, version)
            if stored.stable is None or stored.stable == version:
                raise ConfigError(f"version {version} of {group!r} is, or would be, the only one; promote it instead")
            if (stored.canary, stored.share) != (version, share):
                self._append(StoreEvent.CANARY, group, version, share=share, by=by)

    def roll_back(self, group: str, by: str, *, canary: int | None = None, why: dict[str, Any] | None = None) -> int:
        """End the canary, or else return to the version that was stable before; gives the one that acts now.

        With `canary`, nothing happens unless that version is still the canary.
        """
        with self._changing():
            _, stored = self.group(group)
            if canary is not None and stored.canary != canary:
                assert stored.stable is not None
                return stored.stable
            if stored.canary is not None and stored.stable is not None:
                version, to = stored.canary, stored.stable
            elif stored.former and stored.stable is not None:
                version, to = stored.stable, stored.former[-1]
            else:
                raise ConfigError(f"group {group!r} has no canary and no former version to return to")
            self._append(StoreEvent.ROLLED_BACK, group, version, to=to, by=by, why=why or {})
            return to

    def history(self) -> list[dict[str, Any]]:
        """Every event, oldest first."""
        lines = self._history.read_bytes()
        return [json.loads(line) for line in lines[: lines.rfind(b"\n") + 1].splitlines()]

    def _stored(self, group: str, version: int) -> StoredGroup:
        _, stored = self.group(group)
        if version not in stored.versions:
            known = ", ".join(map(str, sorted(stored.versions)))
            raise ConfigError(f"group {group!r} has no version {version}; it has {known}")
        return stored

    def _check_layout(self, group: str, known: StoredGroup, new: PolicyMetadata) -> None:
        """Versions of a group can take each other's place."""
        if known.stable is None:
            return
        old = validate_model(self.read(group, known.stable))
        if _layout(old) != _layout(new):
            raise ModelRefusedError(
                f"version {new.policy_version} of {group!r} has other spaces, actions or memory than {known.stable}"
            )

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._history.exists():
                self._history.touch()
                sync_directory(self.path)
        except OSError as error:
            raise disk_error(self._history, error) from error

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the store while no other process does, and after everything that others changed."""
        with self._history.open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refresh()
            yield

    def _append(self, event: StoreEvent, group: str, version: int, **more: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "event": event.value, "group": group, "version": version, **more}
        try:
            with self._history.open("r+b") as file:
                file.truncate(self._read_bytes)  # a line that a kill tore; whole ones were read
                file.seek(0, os.SEEK_END)
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(self._history, error) from error
        self.refresh()

    def _apply(self, line: bytes) -> None:
        try:
            given = json.loads(line)
            event, group = StoreEvent(given["event"]), str(given["group"])
            self.groups.setdefault(group, StoredGroup()).apply(event, given)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self._history} has a damaged line ({error!s:.100}): {line[:80]!r}") from error


def _layout(metadata: PolicyMetadata) -> tuple[Any, ...]:
    return metadata.observation_space, metadata.action_space, metadata.head, metadata.memory_width, metadata.masked
