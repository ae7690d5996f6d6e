"""The result of a sweep: a row per trial, the best settings, and what may be said of them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from relayrl.errors import ConfigError
from relayrl.sweeps.planning.sweep_plan import batches
from relayrl.sweeps.sweep_directory import SweepDirectory
from relayrl.sweeps.sweep_owner import alone
from relayrl.sweeps.sweep_settings import SweepSettings
from relayrl.sweeps.sweep_state import SweepState
from relayrl.sweeps.trial_jobs import Job, JobState, Trial, trials_of
from relayrl.training.files.atomic_files import write_whole

if TYPE_CHECKING:
    from rich.table import Table

_MAX_ERROR = 100


class TrialState(Enum):
    """Where a trial stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a trial was between two rungs: its settings, the trial whose networks it began with, and each seed's result."""

    settings: Mapping[str, Any]
    parent: int | None
    until: int | None
    values: Mapping[int, float | None]
    parameter_hashes: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TrialReport:
    """A trial: its value is the mean over seeds, at its end or where it was pruned."""

    trial: int
    state: TrialState
    value: float | None
    values: Mapping[int, float | None]
    settings: Mapping[str, Any]
    num_env_steps: int
    seconds: float
    error: str
    stretches: Sequence[Stretch]
    run_dirs: Mapping[int, str]
    lineage: Sequence[int]
    """In a population: the members that trained its networks, generation by generation; the last is the trial itself."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """All trials of a sweep in the order of their numbers; `best` is None before one is done."""

    name: str
    path: Path
    metric: str
    direction: str
    seeds: Sequence[int]
    trials: Sequence[TrialReport]
    best: TrialReport | None
    best_settings: Path | None
    picture: Path | None

    def to_json(self) -> str:
        """One line."""
        return json.dumps({**asdict(self), "is_over": self.is_over}, default=_plain)

    @property
    def is_over(self) -> bool:
        """Whether every trial has ended."""
        return all(trial.state not in (TrialState.WAITING, TrialState.RUNNING) for trial in self.trials)


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)


def report_of(
    sweep: SweepSettings, directory: SweepDirectory, jobs: Sequence[Job], *, writes: bool = True
) -> SweepReport:
    """What there is so far; the picture and the best settings are written as files unless `writes` is False."""
    trials = trials_of(jobs)
    latest = _latest_rungs(sweep, trials)
    reports = [_reported(sweep, directory, trials, trial, latest) for trial in trials.values()]
    done = [each for each in reports if each.state is TrialState.DONE and each.value is not None]
    key = sweep.objective.key
    best = max(done, key=lambda each: (key(each.value or 0.0), -each.trial)) if done else None
    if writes and best is not None:
        from relayrl.sweeps.results.sweep_picture import draw

        with alone(directory.path):
            _write_best(sweep, directory, best, len(reports))
            draw(sweep, reports, directory.picture)
    return SweepReport(
        name=directory.name,
        path=directory.path,
        metric=sweep.objective.metric,
        direction=sweep.objective.direction.value,
        seeds=sweep.seeds,
        trials=reports,
        best=best,
        best_settings=directory.best if directory.best.exists() else None,
        picture=directory.picture if directory.picture.exists() else None,
    )


def _latest_rungs(sweep: SweepSettings, trials: Mapping[int, Trial]) -> dict[int, int]:
    """The furthest rung that a trial of the same batch has been sent to, by trial; beyond all once another batch follows."""
    if sweep.is_population:
        return {}
    found: dict[int, int] = {}
    for batch in batches(sweep):
        furthest = max((trials[number].last_rung for number in batch if number in trials), default=0)
        has_successor = any(number > batch[-1] for number in trials)
        found |= dict.fromkeys(batch, furthest + 1 if has_successor else furthest)
    return found


def _reported(
    sweep: SweepSettings,
    directory: SweepDirectory,
    trials: Mapping[int, Trial],
    trial: Trial,
    latest: Mapping[int, int],
) -> TrialReport:
    last = trial.at(trial.last_rung)
    stretches = [_stretch(trial.at(rung)) for rung in range(trial.last_rung + 1)]
    return TrialReport(
        trial=trial.number,
        state=_state(trial, latest.get(trial.number, 0)),
        value=trial.value(trial.last_rung),
        values={job.seed: job.outcome.value for job in last},
        settings=dict(trial.settings),
        num_env_steps=sum(
            max(job.outcome.num_env_steps for job in trial.jobs if job.seed == seed) for seed in sweep.seeds
        ),
        seconds=sum(job.outcome.seconds for job in trial.jobs),
        error=trial.error,
        stretches=stretches,
        run_dirs={job.seed: str(directory.run_dir(job)) for job in last},
        lineage=_lineage(trials, trial) if sweep.is_population else (),
    )


def _lineage(trials: Mapping[int, Trial], trial: Trial) -> list[int]:
    members = [trial.number]
    for rung in range(trial.last_rung, 0, -1):
        parent = trials[members[0]].at(rung)[0].parent
        members.insert(0, members[0] if parent is None else parent)
    return members


def _stretch(jobs: Sequence[Job]) -> Stretch:
    first = jobs[0]
    hashes = {job.seed: job.outcome.parameter_hash for job in jobs}
    return Stretch(dict(first.settings), first.parent, first.until, {j.seed: j.outcome.value for j in jobs}, hashes)


def _state(trial: Trial, latest_rung: int) -> TrialState:
    jobs = trial.at(trial.last_rung)
    if any(job.state is JobState.RUNNING for job in jobs):
        return TrialState.RUNNING
    if not all(job.state.is_over for job in jobs):
        return TrialState.WAITING
    if any(job.state is JobState.FAILED for job in jobs):
        return TrialState.FAILED
    if jobs[0].until is None:
        return TrialState.DONE
    return TrialState.PRUNED if latest_rung > trial.last_rung else TrialState.WAITING


def _write_best(sweep: SweepSettings, directory: SweepDirectory, best: TrialReport, num_trials: int) -> None:
    """The settings of the best trial, complete, as a file for `relayrl train --config`; without a seed."""
    settings = directory.settings_of(best.settings).model_dump(mode="json")
    del settings["seed"]
    seeds = ", ".join(map(str, sweep.seeds))
    lines = [
        f"# The best of {num_trials} trials of sweep {directory.name}: trial {best.trial}, "
        f"{sweep.objective.metric} {best.value:g} over seeds {seeds}.",
        f"# It was chosen on these seeds: {advice(sweep.seeds, directory.best)}",
    ]
    if sweep.is_population:
        lines.append(
            "# A population changes settings while it trains: these are the last ones. The networks are in "
            f"{best.run_dirs[sweep.seeds[0]]}."
        )
    text = "\n".join(lines) + "\n" + yaml.safe_dump(settings, sort_keys=False)
    write_whole(directory.best, text.encode())


def advice(seeds: Sequence[int], best_settings: Path) -> str:
    """What to do before one reports how good the best settings are."""
    return f"report with others, as in relayrl train --config {best_settings} --seed {max(seeds) + 1}"


def table(report: SweepReport) -> Table:
    """A row per trial, the best first, then those without a value."""
    from rich.table import Table

    sign = -1.0 if report.direction == "maximize" else 1.0
    names = list(dict.fromkeys(name for trial in report.trials for name in trial.settings))
    has_lineage = any(trial.lineage for trial in report.trials)
    shown = Table(box=None, padding=(0, 1), show_edge=False)
    columns = [
        "trial",
        "state",
        report.metric,
        "± seeds",
        "steps",
        *names,
        *(["lineage"] if has_lineage else []),
        "error",
    ]
    for column in columns:
        shown.add_column(
            column, justify="left" if column in ("state", "lineage", "error") else "right", overflow="fold"
        )

    def order(trial: TrialReport) -> tuple[int, float, int]:
        rank = list(TrialState).index(trial.state) if trial.state is not TrialState.DONE else -1
        return rank, sign * trial.value if trial.value is not None else 0.0, trial.trial

    for trial in sorted(report.trials, key=order):
        known = [value for value in trial.values.values() if value is not None]
        spread = f"{statistics.stdev(known):.3g}" if len(known) > 1 else ""
        value = "–" if trial.value is None else f"{trial.value:,.4g}"
        lineage = ["→".join(map(str, trial.lineage))] if has_lineage else []
        settings = [_setting(trial.settings.get(name)) for name in names]
        steps = f"{trial.num_env_steps:,}"
        shown.add_row(
            *(str(trial.trial), trial.state.value, value, spread, steps, *settings, *lineage, trial.error[:_MAX_ERROR]),
            style="bold" if report.best is not None and trial.trial == report.best.trial else None,
        )
    return shown


def _setting(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep_in(path: Path) -> tuple[SweepSettings, SweepDirectory]:
    """The sweep that lies in a directory."""
    from relayrl.config.settings import parse_settings
    from relayrl.config.settings_text import read_mapping

    if not (path / "sweep.yaml").exists():
        raise ConfigError(f"{path} holds no sweep (no sweep.yaml); run one with: relayrl sweep CONFIG.yaml")
    sweep = parse_settings(SweepSettings, read_mapping(path / "sweep.yaml"))
    return sweep, SweepDirectory(path, sweep)


def read_report(sweep: SweepSettings, directory: SweepDirectory) -> SweepReport:
    """What there is of a sweep now; nothing is written."""
    with SweepState(directory.state_url, directory.name, time.time) as state:
        return report_of(sweep, directory, state.jobs(), writes=False)
