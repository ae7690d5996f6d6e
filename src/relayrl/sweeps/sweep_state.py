"""What a sweep remembers, in SQLite or PostgreSQL: its settings, its jobs, and who works on them.

    relayrl_sweeps        sweep · settings (JSON) · began · concurrency
    relayrl_sweep_jobs    sweep · trial · rung · seed · settings · until · parent · state · owner · lease · attempts · outcome

A job belongs to the process that has its lease, and is written by nobody else. Claims count the jobs that run, of all
processes, in the same transaction: the sweep's concurrency is never exceeded. Not its job: deciding which jobs there are
(`planning`), and whether a process is still there (`sweep_owner`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from relayrl.errors import ConfigError
from relayrl.sinks.databases.short_transactions import Execute, open_transactions
from relayrl.sweeps.trial_jobs import Job, JobState, Key, TrialOutcome

LEASE_S = 60.0
"""After so long without a sign of life, a process on another machine is taken for dead."""
_TABLES = (
    """CREATE TABLE IF NOT EXISTS relayrl_sweeps (
       sweep TEXT PRIMARY KEY, version INTEGER NOT NULL, settings TEXT NOT NULL, concurrency INTEGER NOT NULL,
       began DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS relayrl_sweep_jobs (
       sweep TEXT NOT NULL, trial INTEGER NOT NULL, rung INTEGER NOT NULL, seed BIGINT NOT NULL,
       settings TEXT NOT NULL, until_step BIGINT, parent INTEGER, state TEXT NOT NULL, owner TEXT NOT NULL,
       lease_ends DOUBLE PRECISION NOT NULL, attempts INTEGER NOT NULL, outcome TEXT NOT NULL,
       PRIMARY KEY (sweep, trial, rung, seed))""",
)
_VERSION = 1
_COLUMNS = "trial, rung, seed, settings, until_step, parent, state, owner, attempts, outcome"
_OF_JOB = "sweep = ? AND trial = ? AND rung = ? AND seed = ?"


class SweepState:
    """The rows of one sweep. `clock` gives seconds since the epoch."""

    def __init__(self, url: str, sweep: str, clock: Callable[[], float]) -> None:
        self._database, self._sweep, self._clock = open_transactions(url), sweep, clock
        self._url = url

    def __enter__(self) -> SweepState:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def begin(self, settings: dict[str, Any], concurrency: int) -> None:
        """Make the sweep, or go on with the one that is there. What decides its trials must be as it was; its number of
        trials may grow."""

        def work(execute: Execute) -> None:
            for statement in _TABLES:
                execute(statement)
            rows = execute("SELECT settings, version FROM relayrl_sweeps WHERE sweep = ?", self._sweep)
            if not rows:
                values = (self._sweep, _VERSION, json.dumps(settings), concurrency, self._clock())
                execute(
                    "INSERT INTO relayrl_sweeps (sweep, version, settings, concurrency, began) VALUES (?, ?, ?, ?, ?)",
                    *values,
                )
                return
            if rows[0][1] != _VERSION:
                raise ConfigError(
                    f"{self._sweep} was made by another version of RelayRL; choose another directory or name"
                )
            _require_same(json.loads(rows[0][0]), settings, self._sweep)
            execute(
                "UPDATE relayrl_sweeps SET settings = ?, concurrency = ? WHERE sweep = ?",
                *(json.dumps(settings), concurrency, self._sweep),
            )

        self._database.run(work)

    def settings(self) -> dict[str, Any] | None:
        """The settings of the sweep; None where there is no such sweep."""

        def work(execute: Execute) -> dict[str, Any] | None:
            for statement in _TABLES:
                execute(statement)
            rows = execute("SELECT settings FROM relayrl_sweeps WHERE sweep = ?", self._sweep)
            found: dict[str, Any] | None = json.loads(rows[0][0]) if rows else None
            return found

        return self._database.run(work)

    def jobs(self) -> list[Job]:
        """All jobs, in the order in which they are to be started."""
        return self._database.run(self._jobs)

    def _jobs(self, execute: Execute) -> list[Job]:
        query = f"SELECT {_COLUMNS} FROM relayrl_sweep_jobs WHERE sweep = ? ORDER BY rung, trial, seed"
        return [_job(row) for row in execute(query, self._sweep)]

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs; those that are there already stay as they are."""

        def work(execute: Execute) -> None:
            for job in jobs:
                execute(
                    "INSERT INTO relayrl_sweep_jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    *(
                        self._sweep,
                        *job.key,
                        json.dumps(job.settings),
                        job.until,
                        job.parent,
                        job.state.value,
                        job.owner,
                    ),
                    *(0.0, job.attempts, json.dumps(asdict(job.outcome))),
                )

        self._database.run(work)

    def free(self, is_gone: Callable[[Job], bool]) -> list[Job]:
        """Let others have the jobs of processes that are gone; gives them."""
        freed: list[Job] = []

        def work(execute: Execute) -> None:
            freed.clear()
            query = f"SELECT {_COLUMNS} FROM relayrl_sweep_jobs WHERE sweep = ? AND state = ?"
            for job in map(_job, execute(query, self._sweep, JobState.RUNNING.value)):
                if is_gone(job):
                    self._cut_off(execute, job, "", 0)
                    freed.append(job)

        self._database.run(work)
        return freed

    def expired(self) -> set[Key]:
        """Jobs whose lease has ended."""
        query = "SELECT trial, rung, seed FROM relayrl_sweep_jobs WHERE sweep = ? AND state = ? AND lease_ends < ?"
        rows = self._database.run(lambda execute: execute(query, self._sweep, JobState.RUNNING.value, self._clock()))
        return {(trial, rung, seed) for trial, rung, seed in rows}

    def claim(self, owner: str, most: int) -> list[Job]:
        """Take up to `most` jobs that wait, as far as the sweep's concurrency allows."""

        def work(execute: Execute) -> list[Job]:
            ((concurrency,),) = execute("SELECT concurrency FROM relayrl_sweeps WHERE sweep = ?", self._sweep)
            jobs = self._jobs(execute)
            room = concurrency - sum(job.state is JobState.RUNNING for job in jobs)
            claimed = [job for job in jobs if job.state is JobState.WAITING][: max(0, min(room, most))]
            for job in claimed:
                execute(
                    f"UPDATE relayrl_sweep_jobs SET state = ?, owner = ?, lease_ends = ? WHERE {_OF_JOB}",
                    *(JobState.RUNNING.value, owner, self._clock() + LEASE_S, self._sweep, *job.key),
                )
            return claimed

        return self._database.run(work)

    def renew(self, owner: str) -> set[Key]:
        """Extend the leases of a process; gives the jobs that it still has."""

        def work(execute: Execute) -> set[Key]:
            mine = "sweep = ? AND owner = ? AND state = ?"
            values = (self._sweep, owner, JobState.RUNNING.value)
            execute(f"UPDATE relayrl_sweep_jobs SET lease_ends = ? WHERE {mine}", self._clock() + LEASE_S, *values)
            rows = execute(f"SELECT trial, rung, seed FROM relayrl_sweep_jobs WHERE {mine}", *values)
            return {(trial, rung, seed) for trial, rung, seed in rows}

        return self._database.run(work)

    def end(self, owner: str, job: Job, outcome: TrialOutcome) -> None:
        """Record the outcome of a job, if `owner` still has it."""
        ended = job.ended(outcome)

        def work(execute: Execute) -> None:
            execute(
                f"UPDATE relayrl_sweep_jobs SET state = ?, outcome = ? WHERE {_OF_JOB} AND owner = ? AND state = ?",
                *(ended.state.value, json.dumps(asdict(outcome)), self._sweep, *job.key, owner, JobState.RUNNING.value),
            )

        self._database.run(work)

    def give_back(self, owner: str, job: Job, reason: str, max_restarts: int) -> None:
        """Let others have a job of `owner` whose run was cut off, for at most `max_restarts` times; then it has failed."""

        def work(execute: Execute) -> None:
            for own in self._jobs(execute):
                if own.key == job.key and own.owner == owner and own.state is JobState.RUNNING:
                    self._cut_off(execute, own, reason, max_restarts)

        self._database.run(work)

    def _cut_off(self, execute: Execute, job: Job, reason: str, max_restarts: int) -> None:
        attempts = job.attempts + bool(reason)
        is_over = attempts > max_restarts and bool(reason)
        outcome = TrialOutcome(error=f"{reason}, after {job.attempts} restarts") if is_over else TrialOutcome()
        state = JobState.FAILED if is_over else JobState.WAITING
        execute(
            f"UPDATE relayrl_sweep_jobs SET state = ?, owner = '', attempts = ?, outcome = ? WHERE {_OF_JOB}",
            *(state.value, attempts, json.dumps(asdict(outcome)), self._sweep, *job.key),
        )

    def retry_failed(self) -> list[Job]:
        """Let the jobs that failed wait again; gives them."""
        failed = [job for job in self.jobs() if job.state is JobState.FAILED]

        def work(execute: Execute) -> None:
            for job in failed:
                execute(
                    f"UPDATE relayrl_sweep_jobs SET state = ?, attempts = 0 WHERE {_OF_JOB} AND state = ?",
                    *(JobState.WAITING.value, self._sweep, *job.key, JobState.FAILED.value),
                )

        self._database.run(work)
        return failed

    @property
    def seconds(self) -> float:
        """Since the sweep began."""
        rows = self._database.run(
            lambda execute: execute("SELECT began FROM relayrl_sweeps WHERE sweep = ?", self._sweep)
        )
        return self._clock() - float(rows[0][0])


def _job(row: Sequence[Any]) -> Job:
    trial, rung, seed, settings, until, parent, state, owner, attempts, outcome = row
    known = TrialOutcome(**json.loads(outcome))
    return Job(trial, rung, seed, json.loads(settings), until, parent, JobState(state), owner, attempts, known)


_MAY_CHANGE = ("concurrency", "budget", "max_restarts", "runner", "state", "name", "trials")


def _require_same(before: dict[str, Any], after: dict[str, Any], sweep: str) -> None:
    changed = [key for key in {**before, **after} if key not in _MAY_CHANGE and before.get(key) != after.get(key)]
    if changed:
        raise ConfigError(
            f"sweep {sweep} was begun with another {' and '.join(sorted(changed))}: its trials would not be comparable; "
            f"put back what was there, or choose another --sweep-dir (these may change: {', '.join(_MAY_CHANGE)})"
        )
    if after["trials"] < before["trials"]:
        raise ConfigError(f"sweep {sweep} has {before['trials']} trials already; give as many or more")
    if after["trials"] > before["trials"] and after.get("pruning") and before["trials"] % before["batch"]:
        raise ConfigError(
            f"the last batch of sweep {sweep} is smaller than the others, and its trials were compared without the new ones; "
            f"pruned sweeps grow from a multiple of batch ({before['batch']})"
        )
