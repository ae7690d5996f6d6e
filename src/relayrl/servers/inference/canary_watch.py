"""Collects the returns of stable versions and canaries while both act, and says which canary is worse.

What was collected survives a restart: moments of both are in one small file, written whole. They begin anew with every canary.
Returns are what clients say they are.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relayrl.runtime.remote.deployment import Deployment
from relayrl.servers.inference.sequential_test import Comparison, Returns, compare
from relayrl.training.files.atomic_files import write_whole

_log = logging.getLogger("relayrl.servers.inference.canary_watch")
MAX_RETURN = 1e15


@dataclass(slots=True)
class CanaryTrial:
    """One canary beside its stable version."""

    stable: int
    canary: int
    returns: dict[int, Returns] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        moments = {str(version): [r.count, r.mean, r.squares] for version, r in self.returns.items()}
        return {"stable": self.stable, "canary": self.canary, "returns": moments}


class CanaryWatch:
    """May be told of returns by any thread."""

    def __init__(self, path: Path, alpha: float) -> None:
        self._path, self._alpha = path, alpha
        self._lock = threading.Lock()
        self._trials: dict[str, CanaryTrial] = {}
        self._is_changed = False
        self._read()

    def follow(self, group: str, deployment: Deployment) -> None:
        """A group's deployment is this now: a new canary begins a new trial, and none ends it."""
        with self._lock:
            trial = self._trials.get(group)
            if deployment.canary is None:
                self._is_changed |= self._trials.pop(group, None) is not None
            elif trial is None or (trial.stable, trial.canary) != (deployment.stable, deployment.canary):
                versions = deployment.stable, deployment.canary
                self._trials[group] = CanaryTrial(*versions, {version: Returns() for version in versions})
                self._is_changed = True

    def report(self, group: str, version: int, value: float) -> None:
        """An episode that one version played from its first to its last step had this return."""
        with self._lock:
            trial = self._trials.get(group)
            if trial is not None and version in trial.returns and abs(value) <= MAX_RETURN:  # NaN is not
                trial.returns[version].add(value)
                self._is_changed = True

    def comparisons(self) -> dict[str, tuple[CanaryTrial, Comparison]]:
        """Every canary beside its stable version, as of now."""
        with self._lock:
            return {
                group: (trial, compare(trial.returns[trial.stable], trial.returns[trial.canary], self._alpha))
                for group, trial in self._trials.items()
            }

    def save(self) -> None:
        """Write what was collected, if anything changed."""
        with self._lock:
            if not self._is_changed:
                return
            content = json.dumps({group: trial.as_dict() for group, trial in self._trials.items()})
            self._is_changed = False
        write_whole(self._path, content.encode())

    def _read(self) -> None:
        try:
            given = json.loads(self._path.read_text())
            for group, trial in given.items():
                returns = {int(v): Returns(int(n), float(m), float(s)) for v, (n, m, s) in trial["returns"].items()}
                if not all(math.isfinite(r.mean + r.squares) and r.count >= 0 for r in returns.values()):
                    raise ValueError("moments that are not finite")
                self._trials[group] = CanaryTrial(int(trial["stable"]), int(trial["canary"]), returns)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._trials.clear()
            _log.warning("returns of canaries cannot be read and begin anew", extra={"why": str(error)[:200]})
