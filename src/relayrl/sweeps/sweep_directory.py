"""The directory of a sweep, and its jobs as orders for a runner.

sweep.yaml       its settings                     runs/       run directories, one per trial and seed
base.yaml        what all runs share              logs/       what the trials' processes printed
sweep.db         its state, unless PostgreSQL     outcomes/   how jobs ended
best.yaml        the best settings                sweep.png   the picture
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from relayrl.engines.runs.resume_rules import check_changes
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.sessions import TrainRequest, open_session, require_trusted_request
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings, merged
from relayrl.errors import ConfigError
from relayrl.sweeps.planning.population import generation_ends
from relayrl.sweeps.sweep_owner import alone, is_locked
from relayrl.sweeps.sweep_settings import SQLITE, SweepSettings
from relayrl.sweeps.trial_jobs import Job, TrialOrder, parted
from relayrl.training.files.atomic_files import write_whole

_STEPS = ("trainer.max_steps", "max_steps")
_CHECKPOINTS_PER_RUN = 10


class SweepDirectory:
    """Paths of a sweep, and what its runs are."""

    def __init__(self, path: Path, sweep: SweepSettings, *, trust: bool = False) -> None:
        self.path, self._sweep, self._trust = path.absolute(), sweep, trust
        self.config = self.path / "sweep.yaml"
        self.base = self.path / "base.yaml"
        self.best = self.path / "best.yaml"
        self.picture = self.path / "sweep.png"

    @property
    def state_url(self) -> str:
        """Where the sweep's state is."""
        return f"sqlite:{self.path / 'sweep.db'}" if self._sweep.state == SQLITE else self._sweep.state

    @property
    def name(self) -> str:
        """What the sweep is called in its state."""
        return self._sweep.name or self.path.name

    def write(self) -> None:
        """Write the settings, and those that all runs share."""
        shown = self._sweep.model_dump(mode="json")
        with alone(self.path):
            write_whole(self.base, yaml.safe_dump(self._base_values, sort_keys=False).encode())
            write_whole(self.config, yaml.safe_dump(shown, sort_keys=False).encode())

    @cached_property
    def _given(self) -> dict[str, Any]:
        return merged(self._sweep.settings, {"env": self._sweep.env, "algo": self._sweep.algo})

    @cached_property
    def base_settings(self) -> RunSettings:
        """The settings of a run in which nothing varies. The environment is made once, as `relayrl train` would."""
        with _as_file(self._given) as file:
            request = TrainRequest(config=file, trust=self._trust)
            settings = open_session(request, create=False).settings
            require_trusted_request(request, settings, self.config)
            return settings

    @cached_property
    def _base_values(self) -> dict[str, Any]:
        """With checkpoints that a killed trial goes on from, and evaluations where trials are compared."""
        max_steps = self.base_settings.trainer.max_steps
        trainer = {"checkpoint_interval": max(1, max_steps // _CHECKPOINTS_PER_RUN)}
        interval = self._compared_every()
        evaluation = {} if interval is None else {"interval": interval}
        own = (self._given.get("evaluation") or {}).get("interval")
        if interval is not None and own is not None and interval % own:
            raise ConfigError(
                f"trials are compared every {interval} environment steps and evaluated every {own} (evaluation.interval); "
                "leave the latter out, or choose one that divides the former"
            )
        return merged({"trainer": trainer, "evaluation": evaluation}, self._given)

    def _compared_every(self) -> int | None:
        if self._sweep.pruning is not None:
            return self._sweep.pruning.interval
        if self._sweep.search is not None and self._sweep.is_population:
            return generation_ends(self._sweep.search.population, self.base_settings.trainer.max_steps)[0]
        return None

    def max_steps(self, settings: Mapping[str, Any]) -> int:
        """Environment steps of a run with the settings of a trial."""
        return next((int(settings[key]) for key in _STEPS if key in settings), self.base_settings.trainer.max_steps)

    def settings_of(self, settings: Mapping[str, Any]) -> RunSettings:
        """All settings of the runs of a trial."""
        env, flags, assignments = parted(settings)
        request = TrainRequest(env=env, config=self.base, flags=flags, assignments=assignments, trust=self._trust)
        return open_session(request, create=False).settings

    def require_valid(self) -> None:
        """Raise `ConfigError` where a name or a value of what varies is none, before anything is trained."""
        search = self._sweep.search
        varied: Mapping[str, Sequence[Any]] = (
            self._sweep.grid if search is None else {name: each.ends for name, each in search.parsed().items()}
        )
        is_fixed_length = self._sweep.pruning is not None or self._sweep.is_population
        if is_fixed_length and any(name in _STEPS for name in varied):
            raise ConfigError(
                "trials that are compared on their way have one length; take max_steps out of what varies"
            )
        with _as_file(self._base_values) as base:
            for name, values in varied.items():
                found = [_checked(base, name, value) for value in values]
                if self._sweep.is_population:
                    _require_changeable(name, found)

    def run_dir(self, job: Job) -> Path:
        """The run directory of a job; members of a population have one for each generation."""
        return self._run_dir(job.trial, job.seed, job.rung)

    def _run_dir(self, trial: int, seed: int, rung: int) -> Path:
        generation = f"-generation{rung:03d}" if self._sweep.is_population else ""
        return self.path / "runs" / f"trial{trial:04d}-seed{seed}{generation}"

    def drop_old_checkpoints(self, jobs: Sequence[Job], new: Sequence[Job]) -> None:
        """Remove checkpoints of a population that nobody copies any more: those before the newest generation that is over."""
        if not self._sweep.is_population:
            return
        newest = min(job.rung for job in new)
        for job in jobs:
            if job.rung < newest - 1:
                shutil.rmtree(RunDirectory(self.run_dir(job)).checkpoints, ignore_errors=True)

    def outcome(self, job: Job) -> Path:
        """Where a job's outcome is written."""
        return self.path / "outcomes" / f"trial{job.trial:04d}-seed{job.seed}-rung{job.rung:03d}.json"

    def _lock(self, job: Job) -> Path:
        return self.path / "processes" / f"trial{job.trial:04d}-seed{job.seed}.lock"

    def is_training(self, job: Job) -> bool:
        """Whether a process of this machine works on the job, whoever has started it."""
        directory = RunDirectory(self.run_dir(job))
        if is_locked(self._lock(job)):
            return True
        if not directory.path.exists():
            return False
        try:
            directory.lock()
        except ConfigError:
            return True
        directory.release()
        return False

    def order(self, job: Job) -> TrialOrder:
        """What a runner needs to run a job."""
        has_parent = self._sweep.is_population and job.rung and job.parent is not None
        parent = self._run_dir(job.parent or 0, job.seed, job.rung - 1) if has_parent else None
        return TrialOrder(
            config=str(self.base),
            settings={**job.settings, "seed": job.seed},
            run_dir=str(self.run_dir(job)),
            outcome=str(self.outcome(job)),
            lock=str(self._lock(job)),
            log=str(self.path / "logs" / f"trial{job.trial:04d}-seed{job.seed}.log"),
            metric=self._sweep.objective.metric,
            column=self._sweep.objective.column,
            until=job.until,
            parent=None if parent is None else str(parent),
            trust=self._trust,
            name=f"trial {job.trial} seed {job.seed}" + (f" rung {job.rung}" if job.rung else ""),
        )


@contextlib.contextmanager
def _as_file(values: Mapping[str, Any]) -> Iterator[Path]:
    """Settings as a file, for as long as it takes to read them: a sweep that is refused leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(yaml.safe_dump(dict(values), sort_keys=False))
        yield file


def _checked(base: Path, name: str, value: Any) -> RunSettings:
    env, flags, assignments = parted({name: value})
    return build_run_settings(env, base, flags, assignments)


def _require_changeable(name: str, found: Sequence[RunSettings]) -> None:
    for one in found[1:]:
        try:
            check_changes(found[0], one)
        except ConfigError as error:
            raise ConfigError(f"search.ranges.{name} cannot change inside of a run: {error}") from error
