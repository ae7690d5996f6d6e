"""The local engine: environment, policies, trainer and collector in this process.

    collect a rollout ─▶ update every policy ─▶ evaluate, statistics, checkpoint ─▶ …   then evaluate, export

Nothing here depends on whether anyone watches: progress goes out through a callback that gets numbers and gives nothing
back. The same settings give the same parameters, bit for bit, whether the run was interrupted and resumed or not.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from relayrl.compiled.loader import describe, warn_if_missing
from relayrl.config.plugin_registry import PluginKind
from relayrl.engines.callbacks.callback import Callback
from relayrl.engines.callbacks.callback_calls import CallbackCalls
from relayrl.engines.callbacks.live_params import LiveParams
from relayrl.engines.callbacks.live_run import LiveRun
from relayrl.engines.given_parts import load_part
from relayrl.engines.lessons.curriculum import Curriculum
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.periodic_evaluation import PeriodicEvaluation
from relayrl.engines.local.phase_clock import PhaseClock, peak_memory_mib
from relayrl.engines.local.run_parts import RunParts, build_parts, limit_threads
from relayrl.engines.local.run_state import (
    begin_new_episodes,
    capture,
    environments_lent,
    record_continuation,
    restore,
    start_from,
)
from relayrl.engines.local.statistics_plan import make_statistics
from relayrl.engines.plugins import LOCAL_ENGINE, engine_builder
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import Progress, RunInterrupted, RunResult
from relayrl.engines.settings.number_schedules import built_in_schedule
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.recipes import UNITY
from relayrl.errors import CheckpointError, ConfigError, TrainingDivergedError
from relayrl.models.exports.export import export_policy, metadata_of
from relayrl.models.exports.exported import ExportFormat, PolicyMetadata
from relayrl.models.policy import parameter_hash
from relayrl.runtime.collector import EndedEpisodes
from relayrl.training.files.atomic_files import write_whole
from relayrl.training.files.checkpoints import CheckpointStore, load_checkpoint
from relayrl.training.files.weights import weights_of
from relayrl.training.statistics.run_statistics import Statistics

__all__ = ["LocalEngine", "Progress", "RunInterrupted", "RunResult", "limit_threads"]

logger = logging.getLogger(__name__)


MakePace = Callable[[RunParts, Statistics, PhaseClock, Mapping[str, Any]], Pace]
"""Gives the pace of a run whose steps other processes take; the last argument is what a checkpoint held of it, or empty."""


class LocalEngine:
    """Runs one training run in this process; with `make_pace`, others collect for it."""

    def __init__(
        self,
        settings: RunSettings,
        directory: RunDirectory,
        *,
        tensorboard: bool = True,
        make_pace: MakePace | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._directory, self._make_pace = directory, make_pace
        self._parts: RunParts = _built(settings, collects=make_pace is None)
        self._settings = settings = _with_number(settings, self._parts.env.num_envs)
        if make_pace is not None and settings.environment.parameters:
            self._parts.close()
            raise ConfigError(
                "environment parameters are given by the process that steps the environments, and a training server steps "
                "none; leave out environment_parameters, or train with: relayrl train"
            )
        self._statistics = make_statistics(settings, directory, tensorboard=tensorboard)
        live = LiveRun(settings, directory.path, self._parts.policies, self._parts.trainer, self._statistics)
        self._calls = CallbackCalls(callbacks, live)
        self._checkpoints = CheckpointStore(directory.checkpoints, settings.trainer.keep_checkpoints)
        self._is_interrupted: Callable[[], bool] = lambda: False
        self._on_note: Callable[[str], None] | None = None
        try:
            self._curriculum = Curriculum(settings, self._parts.env.groups)
            self._schedules = self._make_schedules()
            self._evaluation = self._make_evaluation()
        except BaseException:
            self._statistics.close()
            self._parts.close()
            raise
        self._seconds_before, self._started = 0.0, time.perf_counter()
        self._has_resumed = False
        self._warnings: list[str] = []  # of a resume; exporting a run is no reason to give them
        self._go_on_recording: Callable[[], None] = lambda: None
        self._row: dict[str, float] = {}
        self._pace: Pace | None = None
        self._pace_state: Mapping[str, Any] = {}

    def _make_evaluation(self) -> PeriodicEvaluation:
        parts, settings, videos = self._parts, self._settings, self._directory.videos
        lend = partial(environments_lent, parts, settings)
        return PeriodicEvaluation(
            settings, parts.env, parts.policies, self._stop_if_asked, lend, videos, self._curriculum
        )

    def _make_schedules(self) -> dict[str, Callable[[float], float]]:
        """Functions of the share of the run that is over, by the hyper-parameters that follow them."""
        found = {
            name: built_in_schedule(each) or load_part(PluginKind.SCHEDULE, each)
            for name, each in self._settings.schedules.items()
        }
        for name in found:
            params, own = self._scheduled(name)
            if own not in list(params):  # asking for one that differs between groups raises
                params[own]  # raises, and names those that may change
        return found

    def _scheduled(self, name: str) -> tuple[LiveParams, str]:
        """The hyper-parameters of all groups, or of one (`GROUP.NAME`), and which of them a schedule moves."""
        group, _, own = name.rpartition(".")
        return (self._calls.run.params.of(group), own) if group else (self._calls.run.params, own)

    @property
    def settings(self) -> RunSettings:
        """The run's settings, with the number of environments that a factory's own vector environment turned out to have."""
        return self._settings

    @property
    def notes(self) -> list[str]:
        """What somebody should know who is about to start the run."""
        asked, last_step, num_envs = self._settings.trainer.max_steps, self._last_step(), self._parts.env.num_envs
        notes = self._parts.notes
        if asked != last_step:
            notes.append(f"{asked:,} steps are not a multiple of {num_envs} environments: the run takes {last_step:,}")
        return notes

    def resume(self) -> bool:
        """Continue from the newest whole checkpoint of the run directory; False if it has none."""
        self._has_resumed = True
        loaded = self._checkpoints.load_newest()
        if loaded is None:
            logger.info("there is no checkpoint to resume from")
            return False
        steps, state = loaded
        self._curriculum.load_state_dict(state.get("curriculum", {}))
        self._parts.env.begin_lessons(self._curriculum.numbers)  # before new episodes begin, where they must
        self._seconds_before, goes_on = restore(state, self._parts, self._statistics, self._evaluation, self._settings)
        self._warnings = self._differences(goes_on) + self._calls.load_state_dict(state.get("callbacks", {}))
        self._go_on_recording = record_continuation(state, self._parts, self._settings)
        self._pace_state = state.get("pace", {})
        logger.info("resumed at step %d", steps)
        return True

    def _differences(self, goes_on: bool) -> list[str]:
        """Why the resumed run differs from one that was never interrupted; `goes_on` where its episodes do."""
        env, steps, last_step = self._settings.env, self._parts.trainer.num_env_steps, self._last_step()
        found = []
        if not goes_on:
            found.append(
                f"the state of {env} cannot be saved: environments begin new episodes, and the run differs from an "
                "uninterrupted one"
            )
        if steps < last_step and steps % self._parts.block_steps:
            found.append(
                f"the run ended at step {steps:,} with a shorter rollout: it goes on from there with whole ones, and differs "
                f"from a run that was begun with {last_step:,} steps"
            )
        return found

    def init_from(self, source: Path) -> None:
        """Begin with the networks of another run, or of one checkpoint file; everything else begins afresh."""
        if source.is_file():
            _, state = load_checkpoint(source)
        else:
            loaded = CheckpointStore(RunDirectory(source).checkpoints, keep=1).load_newest()
            if loaded is None:
                raise ConfigError(f"--init-from {source}: no checkpoint there; name a run directory or a .ckpt file")
            _, state = loaded
        try:
            start_from(state, self._parts)
        except CheckpointError as error:
            raise ConfigError(f"--init-from {source}: {error}") from error
        logger.info("started from the networks of %s", source)

    def run(
        self,
        on_progress: Callable[[Progress], None],
        is_interrupted: Callable[[], bool] = lambda: False,
        on_note: Callable[[str], None] | None = None,
    ) -> RunResult:
        """Train, evaluate, export. Whatever happens, environments and writers are closed.

        When `is_interrupted` says so, the run saves its state and raises `RunInterrupted`. `on_note` gets what somebody who
        watches should know at once.
        """
        self._is_interrupted = is_interrupted
        self._on_note = on_note
        result: RunResult | None = None
        try:
            with contextlib.nullcontext() if self._directory.is_locked else self._directory.locked():
                result = self._run(on_progress)
        except TrainingDivergedError as error:
            kept = self._checkpoints.paths()
            rescue = (
                f"the last good checkpoint is {kept[-1]}" if kept else "it began so: there is no checkpoint before it"
            )
            raise TrainingDivergedError(f"{error}; {rescue}") from error
        finally:
            self._calls.end(result)
            self.close()
        self._calls.raise_failure()
        return result

    def _run(self, on_progress: Callable[[Progress], None]) -> RunResult:
        logger.info("MLPs on the CPU run in %s", describe())
        warn_if_missing()
        for warning in self._warnings:
            logger.warning("%s", warning)
        self._statistics.rewind(self._parts.trainer.num_env_steps if self._has_resumed else 0)
        self._started = time.perf_counter()
        steps_before = self._parts.trainer.num_env_steps
        self._go_on_recording()
        self._parts.pretrain()
        self._evaluation.begin()
        self._calls.start()
        if not self._checkpoints.paths():
            self.save()  # a run that diverges before its first interval has something to go back to
        self._train(on_progress)
        seconds = time.perf_counter() - self._started
        self.save()
        self._calls.raise_failure()
        if self._parts.recorder is not None:
            self._parts.recorder.end()
        self.export(list(ExportFormat))
        result = self._result(seconds, self._parts.trainer.num_env_steps - steps_before)
        write_whole(self._directory.result, (result.to_json() + "\n").encode())
        return result

    def close(self) -> None:
        """Release environments and writers."""
        self._statistics.close()
        self._evaluation.close()
        self._parts.close()

    def _train(self, on_progress: Callable[[Progress], None]) -> None:
        clock = PhaseClock()
        if self._make_pace is None:
            pace = self._parts.pace(self._settings, self._statistics, clock, self.save)
        else:
            pace = self._make_pace(self._parts, self._statistics, clock, self._pace_state)
        self._pace, pace.on_collected = pace, self._calls.rollout
        if self._calls.sees_rollouts and not pace.shows_rollouts:
            raise ConfigError(
                f"on_rollout of a callback needs rollouts on the host, and those of this run stay on {self._settings.device}; "
                "set environment.options.device=cpu"
            )
        if self._calls.sees_updates:
            pace.on_updated = self._calls.update
        try:
            self._train_at(pace, clock, on_progress)
            pace.settle()
            pace.conclude()
        finally:
            pace.close()

    def _train_at(self, pace: Pace, clock: PhaseClock, on_progress: Callable[[Progress], None]) -> None:
        last_step, num_envs = self._last_step(), self._parts.env.num_envs
        clock.start(pace.num_env_steps)
        has_row = self._statistics.num_rows > 0
        is_over = self._calls.ends_run
        while not is_over and pace.num_env_steps < last_step and not self._evaluation.has_reached_target:
            before, version = pace.num_env_steps, self._parts.trainer.policy_version
            self._follow_schedules(before / last_step)
            pace.advance(min(self._parts.block_steps, last_step - before) // num_envs)
            steps = pace.num_env_steps
            self._count_episodes(pace)
            self._arrange_games(pace)
            self._call_update(pace, version)
            extra = self._evaluate_if_due(before, pace, clock)
            is_first = not has_row and self._has_something_to_tell()
            is_over = steps >= last_step or self._calls.ends_run
            is_due = is_over or _crossed(self._settings.trainer.summary_freq, before, steps)
            is_summarized = is_due or is_first or bool(extra)
            if is_summarized:
                if is_over:
                    pace.settle()
                pace.after_update(self._summary(steps, clock, extra))
                has_row = True
            is_save_due = pace.is_save_due or _crossed(self._settings.trainer.checkpoint_interval, before, steps)
            if is_save_due and not is_over:
                pace.settle()
                self.save()
                clock.lap("save")
            on_progress(Progress(steps, last_step, self._seconds(), self._return_to_show(), self._row))
            if self._is_interrupted():
                pace.settle()
                if not is_summarized:
                    self._summary(steps, clock, {})()
                self.save()
                raise RunInterrupted

    def _arrange_games(self, pace: Pace) -> None:
        """Self-play: snapshots are of whole policies, so critics that go on learning beside are waited for."""
        league = self._parts.league
        if league is not None and league.is_due(pace.num_env_steps):
            if pace.learns_beside:  # opponents are copies of copies, which the collecting thread alone changes
                league.advance(pace.num_env_steps, None)
                return
            pace.settle()
            league.advance(pace.num_env_steps, self._parts.trainer.policy_version)

    def _follow_schedules(self, progress: float) -> None:
        for name, schedule in self._schedules.items():
            params, own = self._scheduled(name)
            params[own] = schedule(progress)

    def _call_update(self, pace: Pace, version_before: int) -> None:
        """Callbacks see whole updates: critics that go on learning beside are waited for."""
        if self._calls.sees_updates and not pace.learns_beside:
            pace.settle()
            if self._parts.trainer.policy_version != version_before:
                self._calls.update()

    def _count_episodes(self, pace: Pace) -> None:
        ended = pace.take_ended()
        self._follow_lessons(ended, pace)
        if not ended.returns and not ended.recorded:
            return
        scored = self._evaluation.score_training(ended)
        self._statistics.add_episodes(scored.returns, ended.lengths, ended.group_returns)
        self._statistics.add_agent_returns(scored.agent_returns)
        self._statistics.add_recorded(ended.recorded)

    def _follow_lessons(self, ended: EndedEpisodes, pace: Pace) -> None:
        if self._curriculum.is_final:
            return
        steps, collector = pace.num_env_steps, self._parts.collector
        progress, metrics = steps / self._last_step(), self._statistics.latest()
        begun = self._curriculum.advance(ended, collector.num_steps, progress, metrics)
        if not begun:
            return
        for lesson in begun:
            logger.info("step %d: %s", steps, lesson)
            if self._on_note is not None:
                self._on_note(f"step {steps:,}: {lesson}")
        self._parts.env.begin_lessons(self._curriculum.numbers)
        self._evaluation.forget_returns()
        if any(lesson.needs_reset for lesson in begun):
            pace.settle()
            begin_new_episodes(self._parts)

    def _return_to_show(self) -> float:
        """What a person watches: where the agents' returns cancel, only evaluations say anything."""
        return self._evaluation.last_or_nan if self._evaluation.is_zero_sum else self._statistics.mean_return

    def _has_something_to_tell(self) -> bool:
        """Whether a row would hold more than times: the first is not kept waiting for `summary_freq`."""
        return self._statistics.num_episodes > 0 or self._parts.trainer.policy_version > 0

    def _summary(self, num_env_steps: int, clock: PhaseClock, extra: dict[str, float]) -> Callable[[], None]:
        """What writes the row of this step, with times as they are now."""
        times = {"time/seconds": self._seconds(), "system/peak_memory_mib": peak_memory_mib()}
        numbers = {**times, **clock.take(num_env_steps), **self._curriculum.metrics(), **extra}
        return partial(self._summarize, num_env_steps, numbers)

    def _summarize(self, num_env_steps: int, extra: dict[str, float]) -> None:
        self._row = self._statistics.summarize(num_env_steps, extra)

    def _last_step(self) -> int:
        """`max_steps`, or the next number of steps that all environments take alike."""
        num_envs = self._parts.env.num_envs
        return -(-self._settings.trainer.max_steps // num_envs) * num_envs

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    def _evaluate_if_due(self, steps_before: int, pace: Pace, clock: PhaseClock) -> dict[str, float]:
        if not self._evaluation.is_due(steps_before, pace.num_env_steps):
            return {}
        pace.settle()
        metrics, is_best = self._evaluation.during(pace.num_env_steps)
        if is_best:
            weights = {"trainer": weights_of(self._parts.trainer.state_dict()), "metrics": metrics}
            self._checkpoints.save_best(pace.num_env_steps, weights)
        self._statistics.show(metrics)
        self._calls.evaluation()
        clock.lap("evaluate")
        return metrics

    def _stop_if_asked(self) -> None:
        """Inside the final evaluation, before which everything was saved."""
        if self._is_interrupted():
            raise RunInterrupted

    def save(self) -> None:
        """Write a checkpoint of the present state; one with numbers that are not finite is refused."""
        for name, policy in self._parts.policies.items():
            if not all(bool(torch.isfinite(p).all()) for p in policy.parameters()):
                raise TrainingDivergedError(f"the policy of {name!r} holds numbers that are not finite; lower its rate")
        self._statistics.sync()
        if self._parts.recorder is not None:
            self._parts.recorder.flush()
        state = capture(self._parts, self._statistics, self._evaluation, self._seconds())
        if self._make_pace is not None:
            state["pace"] = dict(self._pace_state) if self._pace is None else self._pace.state_dict()
        state["callbacks"] = self._calls.state_dict()
        state["curriculum"] = self._curriculum.state_dict(self._parts.collector.num_steps)
        path = self._checkpoints.save(self._parts.trainer.num_env_steps, state)
        logger.info("saved %s", path.name)
        self._calls.run.checkpoint = path
        self._calls.checkpoint()

    def export(self, formats: list[ExportFormat], output: Path | None = None) -> list[Path]:
        """Write every group's policy; `output` names the file where there is one group and one format."""
        policies = self._parts.policies
        if output is not None and len(policies) * len(formats) > 1:
            raise ConfigError(f"the run has {len(policies)} policies; export without -o, into its run directory")
        written = []
        for name, policy in policies.items():
            metadata = self._metadata(name)
            for file_format in formats:
                path = output or self._directory.model(name, len(policies), file_format)
                written.append(export_policy(policy, metadata, path, file_format))
        return written

    def _computed_by(self) -> str:
        if self._settings.learners > 1:
            return f"torch, {self._settings.learners} learners"
        return describe() if self._settings.device == "cpu" else f"torch on {self._settings.device}"

    def _metadata(self, name: str) -> PolicyMetadata:
        return metadata_of(
            self._parts.policies[name],
            env=self._settings.env,
            algo=self._settings.algo,
            group=name,
            version=self._parts.trainer.policy_version,
            masked=self._parts.env.groups[name].masks_actions,
            is_warming_up=self._parts.trainer.is_warming_up,
            environment=self._settings.environment.around(),
        )

    def _result(self, seconds: float, num_steps: int) -> RunResult:
        evaluation = self._evaluation.final()
        settings, best = self._settings, self._evaluation.best_return
        return RunResult(
            env=settings.env,
            algo=settings.algo,
            seed=settings.seed,
            num_env_steps=self._parts.trainer.num_env_steps,
            seconds=seconds,
            env_steps_per_s=num_steps / seconds if num_steps else 0.0,
            mean_return=evaluation.mean_return if evaluation else self._statistics.mean_return,
            std_return=evaluation.std_return if evaluation else math.nan,
            train_return=self._statistics.mean_return,
            parameter_hash="".join(parameter_hash(policy) for policy in self._parts.policies.values()),
            run_dir=str(self._directory.path),
            returns=evaluation.returns if evaluation else (),
            best_return=best if math.isfinite(best) else math.nan,
            reached_target=self._evaluation.has_reached_target,
            computed_by=self._computed_by(),
            episodes_asked=evaluation.num_asked if evaluation else 0,
            episodes_ended=evaluation.num_ended if evaluation else 0,
            episodes_cut=evaluation.num_cut if evaluation else 0,
            stopped_by=evaluation.stopped_by.value if evaluation and evaluation.stopped_by else "",
            scored_by=evaluation.scored_by if evaluation else "",
            group_returns=evaluation.group_returns if evaluation else {},
            agent_returns=evaluation.agent_returns if evaluation else {},
            opponents={name: match.to_json() for name, match in evaluation.matches.items()} if evaluation else {},
        )


def _built(settings: RunSettings, *, collects: bool) -> RunParts:
    if collects:
        return engine_builder(settings.engine)(settings)
    if settings.engine != LOCAL_ENGINE:
        raise ConfigError(f"actors collect for a training server, not the engine {settings.engine}; leave engine out")
    return build_parts(settings, collects=False)


def _with_number(settings: RunSettings, num_envs: int) -> RunSettings:
    if settings.environment.num_envs == num_envs or settings.env.startswith(f"{UNITY}:"):  # there it counts simulators
        return settings
    return settings.model_copy(update={"environment": settings.environment.model_copy(update={"num_envs": num_envs})})


def _crossed(interval: int, before: int, now: int) -> bool:
    """Whether a multiple of `interval` lies in (before, now]: no counter that a checkpoint would have to hold."""
    return now // interval > before // interval
