"""What a run directory shows of its run: finished, running, stopped or damaged. Only reads; a running run does not notice."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.errors import ConfigError, RelayRLError
from relayrl.training.statistics.statistics_writers import STEP_COLUMN, read_progress

RETURN, EVALUATION, SECONDS = "episode/return_mean", "evaluation/return_mean", "time/seconds"
_MAX_DEPTH = 3
_LOCKS = Path("/proc/locks")


class RunState(Enum):
    """Where a run stands."""

    RUNNING = "running"
    ENDED = "ended"
    STOPPED = "stopped"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """One look at a run directory; numbers that are not known are NaN."""

    path: Path
    state: RunState
    title: str = ""
    max_steps: int = 0
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    complaint: str = ""

    @property
    def num_env_steps(self) -> int:
        steps = self.columns.get(STEP_COLUMN, ())
        return int(steps[-1]) if steps else 0

    @property
    def steps_per_s(self) -> float:
        """Over the last rows, of a run that may have been resumed."""
        steps, seconds = self.columns.get(STEP_COLUMN, ()), self.columns.get(SECONDS, ())
        first = max(0, len(steps) - 10)
        if not steps or not seconds:
            return math.nan
        began = (steps[first], seconds[first]) if first < len(steps) - 1 else (0, 0.0)
        return (steps[-1] - began[0]) / max(seconds[-1] - began[1], 1e-9)

    @property
    def seconds_left(self) -> float:
        """NaN where the run does not run."""
        if self.state is not RunState.RUNNING or not self.max_steps:
            return math.nan
        return max(0, self.max_steps - self.num_env_steps) / max(self.steps_per_s, 1e-9)

    def newest(self, metric: str) -> float:
        """The newest number of a metric."""
        known = [number for number in self.columns.get(metric, ()) if math.isfinite(number)]
        return known[-1] if known else math.nan

    def curve(self, metric: str) -> tuple[list[float], list[float]]:
        """Steps and numbers of a metric, where there are any."""
        steps = self.columns.get(STEP_COLUMN, ())
        points = [(float(x), y) for x, y in zip(steps, self.columns.get(metric, ()), strict=False) if math.isfinite(y)]
        return [x for x, _ in points], [y for _, y in points]


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Run directories among `paths` and below them, the newest last; `ConfigError` where there is none."""
    found: dict[Path, float] = {}
    given = list(paths)
    for path in given:
        for run in _below(path, _MAX_DEPTH):
            found[run] = (run / "config.yaml").stat().st_mtime
    if not found:
        raise ConfigError(
            f"there is no run in {', '.join(map(str, given))}; name run directories, or a folder that holds some"
        )
    return sorted(found, key=lambda run: (found[run], run))


def _below(path: Path, depth: int) -> list[Path]:
    if (path / "config.yaml").exists():
        return [path]
    if not depth or not path.is_dir():
        return []
    return [
        run for child in path.iterdir() if child.is_dir() and not child.is_symlink() for run in _below(child, depth - 1)
    ]


def look_at(path: Path) -> WatchedRun:
    """A run as it is now; damage is a state, not an error."""
    directory = RunDirectory(path)
    complaints: list[str] = []
    title, max_steps, columns = "", 0, {}
    try:
        settings = directory.settings()
        title, max_steps = f"{settings.algo} on {settings.env}", settings.trainer.max_steps
    except (RelayRLError, OSError) as error:
        complaints.append(_first_line(error))
    try:
        columns = read_progress(directory.progress) if directory.progress.exists() else {}
    except (RelayRLError, OSError, UnicodeDecodeError) as error:
        complaints.append(_first_line(error))
    state = RunState.DAMAGED if complaints else _state(directory)
    return WatchedRun(path, state, title, max_steps, columns, "; ".join(complaints))


def _state(directory: RunDirectory) -> RunState:
    if _is_locked(directory.path / "run.lock"):
        return RunState.RUNNING
    return RunState.ENDED if directory.result.exists() else RunState.STOPPED


def _is_locked(lock: Path) -> bool:
    """Whether a process holds the lock, from the system's own list: taking it, to see whether one can, could refuse a run."""
    if not _LOCKS.exists():
        return False
    try:
        number = lock.stat().st_ino
    except OSError:
        return False
    lines = (line.split() for line in _LOCKS.read_text().splitlines())
    return any("FLOCK" in words and any(word.endswith(f":{number}") for word in words) for words in lines)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def short_names(paths: Sequence[Path]) -> list[str]:
    """Names that tell the runs apart, without the folder that all of them lie in."""
    if len(paths) == 1:
        return [paths[0].resolve().name]
    shared = os.path.commonpath([path.resolve() for path in paths])
    return [os.path.relpath(path.resolve(), shared) for path in paths]
