"""The units of a sweep: a trial is one choice of settings, a job one stretch of one of its runs.

trial 3 ─┬─ seed 1 ── rung 0 ── rung 1 ── …       a rung ends at a number of environment steps, where trials are compared;
         └─ seed 2 ── rung 0 ── rung 1 ── …       without pruning or a population a run is one job
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from relayrl.errors import DecodeError
from relayrl.training.files.atomic_files import write_whole

Key = tuple[int, int, int]
"""Trial, rung and seed of a job."""


class JobState(Enum):
    """Where a job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How a job ended: with a value, or with an error. `parameter_hash` is the run's, at a rung that of its checkpoint."""

    value: float | None = None
    num_env_steps: int = 0
    seconds: float = 0.0
    parameter_hash: str = ""
    error: str = ""

    def write(self, path: Path) -> None:
        """Make it durable: whoever finds it need not run the job again."""
        write_whole(path, (json.dumps(asdict(self)) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> TrialOutcome | None:
        """The outcome in a file; None where there is none."""
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise DecodeError(f"{path} is damaged: {error}; remove it, and the job runs again") from error


@dataclass(frozen=True, slots=True)
class Job:
    """One stretch of a run, and what became of it. `parent` is the trial whose networks it begins with, in a population."""

    trial: int
    rung: int
    seed: int
    settings: Mapping[str, Any]
    until: int | None = None
    parent: int | None = None
    state: JobState = JobState.WAITING
    owner: str = ""
    attempts: int = 0
    outcome: TrialOutcome = field(default_factory=TrialOutcome)

    @property
    def key(self) -> Key:
        return self.trial, self.rung, self.seed

    def ended(self, outcome: TrialOutcome) -> Job:
        """The job with its outcome."""
        return replace(self, state=JobState.FAILED if outcome.error else JobState.DONE, outcome=outcome)


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """A job as a runner gets it: everything that another process needs. Paths are absolute; `outcome` is what it must write.

    `config` is a file of settings, `settings` are laid over it. `parent` is the run directory to begin from, if any. The run
    stops at `until` environment steps, or at its end. Whoever runs it on this machine holds the lock of the file `lock`.
    """

    config: str
    settings: Mapping[str, Any]
    run_dir: str
    outcome: str
    log: str
    lock: str
    metric: str
    column: str
    until: int | None = None
    parent: str | None = None
    trust: bool = False
    name: str = ""

    def run(self) -> bool:
        """Train in this process, from where the run stands, and write the outcome; False where a signal came first."""
        from relayrl.sweeps.runners.trial_process import run_trial

        return run_trial(self)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrialOrder:
        """The reverse of `to_json`."""
        return cls(**json.loads(text))


class Trial:
    """What is known of one trial: its jobs by rung and seed."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = sorted(jobs, key=lambda job: (job.rung, job.seed))
        self.number = self._jobs[0].trial

    @property
    def jobs(self) -> list[Job]:
        """In the order of rungs and seeds."""
        return self._jobs

    @property
    def settings(self) -> Mapping[str, Any]:
        """As they are now: in a population they change from rung to rung."""
        return self._jobs[-1].settings

    @property
    def last_rung(self) -> int:
        return self._jobs[-1].rung

    def at(self, rung: int) -> list[Job]:
        """The jobs of one rung, by seed."""
        return [job for job in self._jobs if job.rung == rung]

    def is_over(self, rung: int) -> bool:
        """Whether all runs have reached a rung, or failed."""
        jobs = self.at(rung)
        return bool(jobs) and all(job.state.is_over for job in jobs)

    def value(self, rung: int) -> float | None:
        """The mean over seeds at a rung; None before all are there, and where one has failed."""
        jobs = self.at(rung)
        values = [job.outcome.value for job in jobs if job.state is JobState.DONE and job.outcome.value is not None]
        return math.fsum(values) / len(values) if jobs and len(values) == len(jobs) else None

    @property
    def error(self) -> str:
        """Of the first run that failed; empty where none did."""
        return next((f"seed {job.seed}: {job.outcome.error}" for job in self._jobs if job.state is JobState.FAILED), "")


def trials_of(jobs: Iterable[Job]) -> dict[int, Trial]:
    """Jobs by trial, in the order of their numbers."""
    found: dict[int, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.trial, []).append(job)
    return {number: Trial(found[number]) for number in sorted(found)}


def parted(settings: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], list[tuple[str, Any]]]:
    """The settings of a trial as `TrainRequest` takes them: environment, flags and assignments."""
    rest = dict(settings)
    env = rest.pop("env", None)
    flags: dict[str, Any] = {key: rest.pop(key) for key in ("seed", "algo") if key in rest}
    return env, flags, list(rest.items())
