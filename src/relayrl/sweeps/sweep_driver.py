"""Running a sweep: plan, claim, start, collect, until nothing is left; any number of processes may do so at once.

    jobs so far ─▶ next_jobs ─▶ state.add ─▶ state.claim ─▶ runner.start ─▶ outcome file ─▶ state.end ─▶ …

All that must survive is in the state and in files. This process may be killed at any moment: its trials save what they have
and leave, and whoever comes next, or works beside it, takes their jobs over once they have left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relayrl.engines.process.interrupts import Interrupt
from relayrl.engines.runs.run_record import RunInterrupted
from relayrl.errors import ConfigError
from relayrl.sweeps.planning.sweep_plan import next_jobs
from relayrl.sweeps.planning.trial_sampling import require_sampler
from relayrl.sweeps.results.sweep_table import SweepReport, report_of
from relayrl.sweeps.runners.trial_runner import StartedTrial, TrialRunner, make_runner
from relayrl.sweeps.sweep_directory import SweepDirectory
from relayrl.sweeps.sweep_owner import SweepOwner, is_dead
from relayrl.sweeps.sweep_settings import SweepSettings
from relayrl.sweeps.sweep_state import LEASE_S, SweepState
from relayrl.sweeps.trial_jobs import Job, JobState, Key, TrialOutcome

POLL_S = 0.05
SYNC_S = 1.0
STOP_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What the user asked for. `most_here` bounds what this process runs at once, beside the sweep's own concurrency."""

    sweep: SweepSettings
    directory: Path
    trust: bool
    resume: bool
    retry_failed: bool
    most_here: int | None
    note: Callable[[str], None]


def run_sweep(request: SweepRequest, interrupt: Interrupt) -> SweepReport:
    """Begin a sweep or go on with it, until all of its jobs are over."""
    sweep = request.sweep
    directory = SweepDirectory(request.directory, sweep, trust=request.trust)
    if request.resume and not directory.config.exists():
        raise ConfigError(f"{request.directory} holds no sweep to resume; begin it without --resume")
    if request.retry_failed and sweep.learns_from_trials:
        raise ConfigError(
            "--retry-failed is for grids and random searches: here, later trials were chosen by what earlier ones gave"
        )
    require_sampler(sweep)
    directory.require_valid()
    num_here = min(sweep.concurrency, request.most_here or sweep.concurrency)
    runner = make_runner(sweep.runner, num_here)
    try:
        with SweepState(directory.state_url, directory.name, time.time) as state:
            state.begin(sweep.model_dump(mode="json"), sweep.concurrency)
            directory.write()
            if request.retry_failed:
                for job in state.retry_failed():
                    directory.outcome(job).unlink(missing_ok=True)
            _Driver(request, directory, state, runner, num_here, interrupt).run()
            return report_of(sweep, directory, state.jobs())
    finally:
        runner.close()


class _Driver:
    """One process's part of a sweep."""

    def __init__(
        self,
        request: SweepRequest,
        directory: SweepDirectory,
        state: SweepState,
        runner: TrialRunner,
        num_here: int,
        interrupt: Interrupt,
    ) -> None:
        self._sweep, self._note = request.sweep, request.note
        self._directory, self._state, self._runner = directory, state, runner
        self._num_here, self._interrupt = num_here, interrupt
        self._owner = SweepOwner(directory.path)
        self._started: dict[Key, tuple[Job, StartedTrial]] = {}
        self._next_sync = self._next_renewal = 0.0

    def run(self) -> None:
        """Work until nothing is left, or somebody asks to stop."""
        self._interrupt.begin()
        try:
            while self._advance():
                if self._interrupt.is_requested():
                    raise RunInterrupted
                time.sleep(POLL_S)
        except RunInterrupted:
            self._stop()
            raise
        finally:
            for _, trial in self._started.values():
                trial.kill()
            try:
                self._state.free(lambda job: job.owner == self._owner.name)
            finally:
                self._owner.close()

    def _advance(self) -> bool:
        """Collect what has ended and start what can begin; False when all is over."""
        has_ended = self._collect()
        now = time.monotonic()
        if now >= self._next_renewal:
            self._renew()
            self._next_renewal = now + LEASE_S / 4
        if not has_ended and now < self._next_sync:
            return True
        self._next_sync = now + SYNC_S
        return self._sync()

    def _sync(self) -> bool:
        jobs = self._state.jobs()
        new = next_jobs(self._sweep, jobs, self._directory.max_steps)
        if new:
            self._state.add(new)
            self._directory.drop_old_checkpoints(jobs, new)
        self._free(jobs)
        seconds = self._sweep.budget.seconds
        is_spent = seconds is not None and self._state.seconds > seconds
        if not is_spent:
            for job in self._state.claim(self._owner.name, self._num_here - len(self._started)):
                self._start(job)
        if is_spent and not any(job.state is JobState.RUNNING for job in jobs):
            self._note(f"the budget of {seconds:g} seconds is spent: no further run begins")
            return False
        return bool(new) or bool(self._started) or any(not job.state.is_over for job in jobs)

    def _free(self, jobs: list[Job]) -> None:
        """Take over jobs of processes that are gone, once their trials have left the run directories."""
        others = [job for job in jobs if job.state is JobState.RUNNING and job.owner != self._owner.name]
        if not others:
            return
        expired = self._state.expired()

        def is_gone(job: Job) -> bool:
            if job.owner == self._owner.name:
                return False
            is_left = is_dead(self._directory.path, job.owner) or job.key in expired
            return is_left and not self._directory.is_training(job)

        for job in self._state.free(is_gone):
            self._note(
                f"{self._directory.order(job).name}: the sweep's process was killed; it goes on from its checkpoint"
            )

    def _start(self, job: Job) -> None:
        known = TrialOutcome.read(self._directory.outcome(job))
        if known is not None:  # its process ended, and its sweep before that was recorded
            self._end(job, known)
            return
        self._started[job.key] = job, self._runner.start(self._directory.order(job))

    def _collect(self) -> bool:
        """Record the trials that have ended; gives whether there are any."""
        ended = [(job, how) for job, trial in self._started.values() if (how := trial.how_it_ended()) is not None]
        for job, how in ended:
            del self._started[job.key]
            outcome = TrialOutcome.read(self._directory.outcome(job))
            if outcome is not None:
                self._end(job, outcome)
            else:
                self._note(f"{self._directory.order(job).name}: {how}")
                self._state.give_back(self._owner.name, job, how, self._sweep.max_restarts)
        return bool(ended)

    def _end(self, job: Job, outcome: TrialOutcome) -> None:
        self._state.end(self._owner.name, job, outcome)
        name = self._directory.order(job).name
        if outcome.error:
            self._note(f"{name} failed: {outcome.error}")
        else:
            self._note(f"{name}: {outcome.value:g} after {outcome.num_env_steps:,} steps")

    def _renew(self) -> None:
        mine = self._state.renew(self._owner.name)
        for key, (job, trial) in list(self._started.items()):
            if key not in mine:  # this process was taken for dead, and another has the job
                trial.kill()
                del self._started[job.key]

    def _stop(self) -> None:
        """Let all trials save their state."""
        for _, trial in self._started.values():
            trial.stop()
        deadline = time.monotonic() + STOP_WAIT_S
        while self._started and time.monotonic() < deadline:
            for job, trial in list(self._started.values()):
                if trial.how_it_ended() is not None:
                    del self._started[job.key]
                    outcome = TrialOutcome.read(self._directory.outcome(job))
                    if outcome is not None:
                        self._end(job, outcome)
            time.sleep(POLL_S)
