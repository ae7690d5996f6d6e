"""`RLTrainer`: the queue-driven life of a reinforcement learner; `RolloutTrainer`: the one over this package's trainers.

    advance():  trajectory queues ─▶ _process_trajectory ─▶ _is_ready_update? ─▶ _update_policy ─▶ policy queues
                                                                                └▶ statistics, checkpoints, when they are due

A custom trainer overrides the underscored or abstract methods. Not its job: collecting, threads (`engines.local`), and
the mathematics.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import numpy as np

from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import ConfigError, LearningError
from relayrl.models.policy import Policy
from relayrl.training.queued.behavior_trainer import PolicySnapshot, Trainer
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainer_settings import TrainerSettings
from relayrl.training.trainers.policy_trainer import PolicyTrainer

_log = logging.getLogger("relayrl.training.queued.rl_trainer")
T = TypeVar("T")
Learner = TypeVar("Learner")
Rollouts = Mapping[str, Rollout]
IDLE_WAIT_S = 0.05
"""How long a threaded `advance` waits for a trajectory before it gives its caller a chance to stop."""


ENVIRONMENT_REWARD = "environment"
"""The reward signal of `collected_rewards` that environments give."""


class ModelSaver(Protocol):
    """Writes what a trainer has learned."""

    def save_checkpoint(self, behavior_name: str, step: int) -> Path | None:
        """Write a checkpoint of a behaviour's trainer at `step`; gives where, if it is a file."""

    def export(self, output_filepath: Path | str, behavior_name: str) -> Path:
        """Write a behaviour's policy as a model file."""


class RLTrainer(Trainer[T], Generic[T, Learner]):
    """Takes trajectories, updates when there are enough, publishes policies, and keeps the schedule of its settings."""

    update_buffer: Sized
    """What was received and not learned from yet."""
    _update_left_by: BaseException | None = None
    """What an update was left by; its policies have then learned half of it."""

    def __init__(self, brain_name: str, trainer_settings: TrainerSettings, stats_reporter: Statistics) -> None:
        super().__init__(brain_name, trainer_settings, stats_reporter)
        self._learner: Learner | None = None
        self._scheduled_step = 0

    @property
    def learner(self) -> Learner:
        """What learns, made when it is first needed."""
        if self._learner is None:
            self._learner = self.create_optimizer()
        return self._learner

    @property
    @abstractmethod
    def collected_rewards(self) -> Mapping[str, Mapping[str, float]]:
        """The rewards of running episodes so far: by reward signal, then by environment and agent."""

    @property
    def model_saver(self) -> ModelSaver | None:
        """Writes checkpoints and models; None where there is no place for them."""
        return None

    @abstractmethod
    def create_optimizer(self) -> Learner:
        """What updates `policies`; called once, when the first trajectory arrives."""

    @abstractmethod
    def _process_trajectory(self, trajectory: T) -> None:
        """Keep a trajectory to learn from."""

    @abstractmethod
    def _is_ready_update(self) -> bool:
        """Whether there is enough to learn from."""

    @abstractmethod
    def _update_policy(self) -> bool:
        """Learn; gives whether policies changed."""

    @abstractmethod
    def _snapshot(self) -> PolicySnapshot:
        """The policies as they are now, copied."""

    def advance(self) -> None:
        wait_s = IDLE_WAIT_S if self.threaded else 0.0
        for queue in self.trajectory_queues:
            # Only what is there now: a fast producer must not keep the update waiting.
            for _ in range(max(len(queue), 1)):
                trajectory = queue.get(wait_s)
                if trajectory is None:
                    break
                self._process_trajectory(trajectory)
                self._update_if_ready()
                queue.done()
        self._update_if_ready()

    def save_model(self) -> None:
        self._require_whole_updates()
        saver = self.model_saver
        if saver is None:
            raise ConfigError("this trainer was given no place for checkpoints; make it with save=…")
        saver.save_checkpoint(self.brain_name, self.get_step)

    def _update_if_ready(self) -> None:
        if not self.is_training or not self._is_ready_update():
            return
        if self._update_wholly():
            self._publish()
        self._keep_schedule()

    def _update_wholly(self) -> bool:
        """`_update_policy`; one that is left by an exception is the last."""
        self._require_whole_updates()
        try:
            return self._update_policy()
        except BaseException as error:
            self._update_left_by = error
            raise

    def _require_whole_updates(self) -> None:
        """`LearningError` after an update that was left in its middle."""
        if self._update_left_by is not None:
            kind = type(self._update_left_by).__name__
            raise LearningError(
                f"an update was left by {kind} in its middle, so nothing is learned, saved or exported after it; "
                "load() a checkpoint, or make the trainer anew"
            ) from self._update_left_by

    def _keep_schedule(self) -> None:
        """Write what has become due since the last update."""
        before, now, settings = self._scheduled_step, self.get_step, self.trainer_settings
        self._scheduled_step = now
        if now // settings.summary_freq > before // settings.summary_freq:
            self._write_summary()
        if (
            now // settings.checkpoint_interval > before // settings.checkpoint_interval
            and self.model_saver is not None
        ):
            self.save_model()

    def _write_summary(self) -> None:
        self.stats_reporter.summarize(self.get_step, {})

    def _publish(self) -> None:
        if self.policy_queues:
            snapshot = self._snapshot()
            for queue in self.policy_queues:
                queue.put(snapshot)


def snapshot_of(trainer: PolicyTrainer, policies: Mapping[str, Policy]) -> PolicySnapshot:
    """The policies of a trainer as they are now, copied."""
    parameters = {
        name: {key: tensor.detach().clone() for key, tensor in policy.state_dict().items()}
        for name, policy in policies.items()
    }
    return PolicySnapshot(trainer.policy_version, parameters, trainer.exploration(policies))


class CalledSaver:
    """A function as a `ModelSaver`."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save

    def save_checkpoint(self, behavior_name: str, step: int) -> None:
        """Call the function."""
        self._save()

    def export(self, output_filepath: Path | str, behavior_name: str) -> Path:
        """Not something that a function can do."""
        raise ConfigError(
            "this trainer only saves; export a policy with `relayrl export RUN_DIR`, or use RelayRLTrainer"
        )


class RolloutTrainer(RLTrainer[Rollouts, PolicyTrainer]):
    """Drives an on-policy or off-policy trainer; a trajectory is a block of rollouts, one per behaviour.

    `keeps_schedule` False leaves statistics and checkpoints to whoever drives it.
    """

    def __init__(
        self,
        brain_name: str,
        trainer_settings: TrainerSettings,
        make_policy: Callable[[str, AgentGroup], Policy],
        make_learner: Callable[[Mapping[str, Policy]], PolicyTrainer],
        stats_reporter: Statistics,
        save: Callable[[], None] | None = None,
        *,
        keeps_schedule: bool = True,
    ) -> None:
        super().__init__(brain_name, trainer_settings, stats_reporter)
        self._make_policy, self._make_learner, self._keeps_schedule = make_policy, make_learner, keeps_schedule
        self._saver = None if save is None else CalledSaver(save)
        self._returns: dict[str, LaneReturns] = {}
        self.update_buffer: list[Rollouts] = []
        self._lag = 0.0

    @property
    def get_step(self) -> int:
        return 0 if self._learner is None else self._learner.num_env_steps

    @property
    def collected_rewards(self) -> Mapping[str, Mapping[str, float]]:
        running: dict[str, float] = {}
        for returns in self._returns.values():
            running |= returns.running
        return {ENVIRONMENT_REWARD: running}

    @property
    def model_saver(self) -> ModelSaver | None:
        return self._saver

    def create_policy(self, behavior_id: str, behavior_spec: AgentGroup) -> Policy:
        return self._make_policy(behavior_id, behavior_spec)

    def create_optimizer(self) -> PolicyTrainer:
        learner = self._make_learner(self.policies)
        if learner.max_steps != self.get_max_steps:
            _log.warning(
                "the learner's schedules and last rollout are those of %d steps, and trainer_settings have %d; give both the "
                "same max_steps to learn what `relayrl train` learns",
                learner.max_steps,
                self.get_max_steps,
            )
        return learner

    def _process_trajectory(self, trajectory: Rollouts) -> None:
        if not isinstance(trajectory, Mapping):
            raise ConfigError(
                "RolloutTrainer learns from rollouts by group; RelayRLTrainer's trainers take trajectories too"
            )
        for name, rollout in trajectory.items():
            returns = self._returns.setdefault(name, LaneReturns(rollout.header))
            self.reward_buffer.extend(returns.add(rollout.reward, rollout.ended, rollout.failed))
            self._lag = self.learner.policy_version - float(rollout.policy_version.mean())
        if self.is_training:
            self.learner.receive(trajectory)
            self.update_buffer.append(trajectory)

    def _is_ready_update(self) -> bool:
        return bool(self.update_buffer)

    def _update_policy(self) -> bool:
        version = self.learner.policy_version
        started = time.perf_counter()
        # A learner that looks at the lag itself knows it better.
        self.stats_reporter.add({"policy/lag_versions": self._lag} | self.learner.advance())
        self.stats_reporter.add({"time/update_seconds": time.perf_counter() - started})
        self.update_buffer.clear()
        return self.learner.policy_version != version

    def _keep_schedule(self) -> None:
        if self._keeps_schedule:
            super()._keep_schedule()

    def _snapshot(self) -> PolicySnapshot:
        return snapshot_of(self.learner, self.policies)

    def end_episode(self) -> None:
        self._returns.clear()


def lane_name(env_id: UUID, agent_id: str) -> str:
    """What `collected_rewards` calls an agent in an environment."""
    return f"{env_id}/{agent_id}"


class LaneReturns:
    """Returns of the episodes of `L` lanes over successive blocks."""

    def __init__(self, header: LaneHeader) -> None:
        self._header, self._running = header, np.zeros(header.num_lanes)

    @property
    def running(self) -> dict[str, float]:
        """What episodes that are under way have got so far, by environment and agent."""
        lanes = ((env_id, agent_id) for env_id in self._header.env_ids for agent_id in self._header.agent_ids)
        return {lane_name(*lane): float(own) for lane, own in zip(lanes, self._running, strict=True)}

    def add(self, reward: Array, ended: Array, failed: Array) -> list[float]:
        """Add a block `[T, L]`; gives the returns of lanes that ended, failed ones left out."""
        finished: list[float] = []
        for t in range(len(reward)):
            self._running += reward[t]
            if ended[t].any():
                finished += self._running[ended[t] & ~failed[t]].tolist()
                self._running[ended[t]] = 0.0
        return finished
