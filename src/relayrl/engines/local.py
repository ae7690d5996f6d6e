"""The local engine: environment, policies, trainer and collector in this process, in lockstep.

    collect a rollout ─▶ update every policy ─▶ statistics, checkpoint ─▶ …   then evaluate, export

Nothing here depends on whether anyone watches: progress goes out through a callback that gets numbers and gives nothing
back. The same settings give the same parameters, bit for bit.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import threadpoolctl
import torch

from relayrl.engines.assembly import assemble
from relayrl.engines.run_directory import RunDirectory
from relayrl.engines.run_settings import RunSettings
from relayrl.engines.seeding import Stream, stream_seed
from relayrl.envs.on_host import on_host
from relayrl.envs.registry import make_vector
from relayrl.envs.settings import EnvSettings
from relayrl.errors import ConfigError
from relayrl.models.export import export_policy
from relayrl.models.exported import ExportFormat, PolicyMetadata
from relayrl.models.live_actor import live_actor
from relayrl.models.policy import parameter_hash
from relayrl.runtime.collector import Collector
from relayrl.runtime.evaluation import EVALUATION_WORLDS, EvaluationResult, evaluate
from relayrl.training.checkpoints import CheckpointStore
from relayrl.training.statistics import ProgressCsv, Statistics, StatisticsWriter, TensorBoardEvents

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, for whoever watches."""

    num_env_steps: int
    max_steps: int
    seconds: float
    mean_return: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended; `mean_return` is the final evaluation's, or the training episodes' where there was none."""

    env: str
    algo: str
    seed: int
    num_env_steps: int
    seconds: float
    env_steps_per_s: float
    mean_return: float
    std_return: float
    train_return: float
    parameter_hash: str
    run_dir: str
    returns: tuple[float, ...] = ()

    def to_json(self) -> str:
        """One line; numbers that do not exist are null."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}
        return json.dumps(values)


class _PhaseClock:
    """Seconds spent in each phase since the last summary."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._steps = 0

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def shares(self, num_env_steps: int) -> dict[str, float]:
        """Metrics of the phases since the last call."""
        steps, self._steps = num_env_steps - self._steps, num_env_steps
        seconds, self._seconds = self._seconds, {}
        total = sum(seconds.values())
        rates = {f"time/{phase}_steps_per_s": steps / value for phase, value in seconds.items()}
        return {"time/env_steps_per_s": steps / total, **rates}


class LocalEngine:
    """Runs one training run in this process."""

    def __init__(self, settings: RunSettings, directory: RunDirectory, *, tensorboard: bool = True) -> None:
        self._settings, self._directory = settings, directory
        limit_threads(settings.threads)
        self._env = on_host(make_vector(settings.env, settings.environment))
        parts = assemble(settings, self._env)
        self._policies, self._trainer = parts.policies, parts.trainer
        self._collector = Collector(
            self._env,
            parts.actors,
            num_steps=parts.rollout_steps,
            seed=stream_seed(settings.seed, Stream.ENVIRONMENT),
            rng=np.random.default_rng(stream_seed(settings.seed, Stream.ACTING)),
        )
        self._block_steps = parts.rollout_steps * self._env.num_envs
        writers: list[StatisticsWriter] = [ProgressCsv(directory.progress)]
        if tensorboard:
            writers.append(TensorBoardEvents(directory.path))
        self._statistics = Statistics(writers)
        self._checkpoints = CheckpointStore(directory.checkpoints, settings.trainer.keep_checkpoints)

    def resume(self) -> bool:
        """Continue from the newest checkpoint of the run directory; False if it has none. Episodes begin afresh."""
        loaded = self._checkpoints.load_newest()
        if loaded is None:
            logger.info("no checkpoint yet; starting from the beginning")
            return False
        _, state = loaded
        self._trainer.load_state_dict(state["trainer"])
        self._collector.load_state_dict(state["collector"])
        logger.info("resumed at step %d; worlds begin new episodes", self._trainer.num_env_steps)
        return True

    def run(self, on_progress: Callable[[Progress], None]) -> RunResult:
        """Train, evaluate, export. Whatever happens, worlds and writers are closed."""
        try:
            started = time.perf_counter()
            steps_before = self._trainer.num_env_steps
            self._train(on_progress, started)
            seconds = time.perf_counter() - started
            self.save()
            self.export(list(ExportFormat))
            result = self._result(seconds, self._trainer.num_env_steps - steps_before)
            self._directory.result.write_text(result.to_json() + "\n")
            return result
        finally:
            self.close()

    def close(self) -> None:
        """Release worlds and writers."""
        self._statistics.close()
        self._env.close()

    def _train(self, on_progress: Callable[[Progress], None], started: float) -> None:
        schedule, trainer = self._settings.trainer, self._trainer
        last_step = max(schedule.max_steps // self._block_steps, 1) * self._block_steps
        next_summary = trainer.num_env_steps + schedule.summary_freq
        next_checkpoint = trainer.num_env_steps + schedule.checkpoint_interval
        clock = _PhaseClock()
        while trainer.num_env_steps < last_step:
            rollouts = self._collector.collect(trainer.policy_version)
            clock.lap("collect")
            trainer.receive(rollouts)
            self._statistics.add(trainer.advance())
            clock.lap("learn")
            self._statistics.add_episodes(*self._collector.take_episodes())
            steps, seconds = trainer.num_env_steps, time.perf_counter() - started
            if steps >= next_summary or steps >= last_step:
                next_summary += schedule.summary_freq
                self._statistics.summarize(steps, {"time/seconds": seconds, **clock.shares(steps)})
            if steps >= next_checkpoint and steps < last_step:
                next_checkpoint += schedule.checkpoint_interval
                self.save()
            on_progress(Progress(steps, last_step, seconds, self._statistics.mean_return))

    def save(self) -> None:
        """Write a checkpoint of the present state."""
        state = {"trainer": self._trainer.state_dict(), "collector": self._collector.state_dict()}
        path = self._checkpoints.save(self._trainer.num_env_steps, state)
        logger.info("saved %s", path.name)

    def export(self, formats: list[ExportFormat], output: Path | None = None) -> list[Path]:
        """Write every group's policy; `output` names the file where there is one group and one format."""
        if output is not None and len(self._policies) * len(formats) > 1:
            raise ConfigError(f"the run has {len(self._policies)} policies; export without -o, into its run directory")
        written = []
        for name, policy in self._policies.items():
            metadata = self._metadata(name)
            for file_format in formats:
                path = output or self._directory.model(name, len(self._policies), file_format)
                written.append(export_policy(policy, metadata, path, file_format))
        return written

    def _metadata(self, name: str) -> PolicyMetadata:
        group = self._env.groups[name]
        return PolicyMetadata(
            env=self._settings.env,
            algo=self._settings.algo,
            group=name,
            policy_version=self._trainer.policy_version,
            masked=group.masks_actions,
            observation_space=group.observation_space,
            action_space=group.action_space,
            head=self._policies[name].head.kind,
        )

    def _evaluate(self) -> EvaluationResult | None:
        episodes = self._settings.evaluation.episodes
        if not episodes:
            return None
        worlds = min(episodes, EVALUATION_WORLDS)
        env = on_host(make_vector(self._settings.env, evaluation_settings(self._settings, worlds)))
        try:
            actors = {name: live_actor(policy) for name, policy in self._policies.items()}
            seed = stream_seed(self._settings.seed, Stream.EVALUATION)
            return evaluate(env, actors, episodes=episodes, seed=seed)
        finally:
            env.close()

    def _result(self, seconds: float, num_steps: int) -> RunResult:
        evaluation = self._evaluate()
        settings = self._settings
        hashes = "".join(parameter_hash(policy) for policy in self._policies.values())
        return RunResult(
            env=settings.env,
            algo=settings.algo,
            seed=settings.seed,
            num_env_steps=self._trainer.num_env_steps,
            seconds=seconds,
            env_steps_per_s=num_steps / seconds if num_steps else 0.0,
            mean_return=evaluation.mean_return if evaluation else self._statistics.mean_return,
            std_return=evaluation.std_return if evaluation else math.nan,
            train_return=self._statistics.mean_return,
            parameter_hash=hashes,
            run_dir=str(self._directory.path),
            returns=evaluation.returns if evaluation else (),
        )


def limit_threads(count: int) -> None:
    """Threads of torch and of NumPy's BLAS. Two pools on the same cores would wait for each other."""
    torch.set_num_threads(count)
    threadpoolctl.threadpool_limits(limits=count, user_api="blas")


def evaluation_settings(settings: RunSettings, num_worlds: int) -> EnvSettings:
    """The run's environment, in this process, with another number of worlds."""
    return settings.environment.model_copy(update={"num_envs": num_worlds, "workers": 0})
