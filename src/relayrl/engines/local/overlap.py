"""How collecting and learning share the time: in turns, or overlapping in two threads.

- `InTurns`: a rollout, then its update, whose critics may go on learning while the next rollout is collected: acting does not
  ask them (`LearningHere`, which remote actors share). The same settings give the same parameters, bit for bit.
- `Overlapping`: while the trainer's thread learns from one rollout, this thread collects the next with the newest policy that
  was published. Rollouts are one or two versions old when they are learned from (`policy/lag_versions`).

A crash in the trainer's thread is raised, with its traceback, by the next call here; neither side waits for a dead one.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relayrl.data.columns import Rollout, copied_rollout
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.errors import EnvError, QueueClosedError, TrainingDivergedError
from relayrl.models.policy import Policy
from relayrl.runtime.collector import EndedEpisodes, RolloutCollector
from relayrl.training.queued.behavior_trainer import PolicySnapshot
from relayrl.training.queued.queues import PolicyQueue, TrajectoryQueue
from relayrl.training.queued.rl_trainer import Rollouts, RolloutTrainer
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.policy_trainer import PolicyTrainer

if TYPE_CHECKING:
    from relayrl.algorithms.updates.torch_update import Finish

JOIN_TIMEOUT_S = 30.0

RewardRule = Callable[[dict[str, Rollout]], Mapping[str, float]]
"""What is done to a rollout before it is learned from, or put in its place; gives metrics."""

Collecting = Callable[[], contextlib.AbstractContextManager[None]]
"""Entered while a rollout is collected, and left before it is learned from."""


class Pace(ABC):
    """Advances a run by one rollout."""

    shows_rollouts: bool = True
    """Whether `on_collected` is called."""

    def __init__(
        self,
        collector: RolloutCollector,
        clock: PhaseClock,
        reward_rule: RewardRule,
        collecting: Collecting = contextlib.nullcontext,
    ) -> None:
        self._collector, self._clock, self._reward_rule, self._collecting = collector, clock, reward_rule, collecting
        self._rule_metrics: Mapping[str, float] = {}  # of the latest rollout
        self.on_collected: Callable[[Rollouts], None] = lambda _: None
        """Called with every rollout before it is learned from."""
        self.on_updated: Callable[[], None] | None = None
        """Called after every update by a pace that learns in a thread of its own, in that thread."""

    @property
    @abstractmethod
    def num_env_steps(self) -> int:
        """Steps collected so far."""

    @property
    def learns_beside(self) -> bool:
        """Whether updates go on in a thread of their own."""
        return False

    @abstractmethod
    def advance(self, num_steps: int) -> None:
        """Collect a rollout of `num_steps` steps of each environment, and see that it is learned from."""

    def take_ended(self) -> EndedEpisodes:
        """Training episodes that ended since the last call."""
        return self._collector.take_ended()

    @property
    def is_save_due(self) -> bool:
        """Whether a checkpoint should be taken now, besides those of the settings' interval."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of it; empty where there is nothing."""
        return {}

    def after_update(self, act: Callable[[], None]) -> None:
        """Call `act` when the statistics hold the metrics of the last update; where it goes on beside, that is later."""
        act()

    def settle(self) -> None:  # noqa: B027 - where nothing goes on beside, everything is settled already
        """Wait until everything collected is learned from: a checkpoint can be taken."""

    def conclude(self) -> None:  # noqa: B027 - nobody else waits for the end of a local run
        """The run has all its steps."""

    def close(self) -> None:  # noqa: B027 - where nothing goes on beside, there is nothing to stop
        """Stop what goes on beside."""

    def _collect(self, policy_version: int, num_steps: int) -> dict[str, Rollout]:
        try:
            with self._collecting():
                rollouts = self._collector.collect(policy_version, num_steps)
        except EnvError as error:
            rest = self._collector.cut_off(policy_version, error)
            if rest:
                self._reward_rule(rest)  # which records it
            raise
        self._rule_metrics = self._reward_rule(rollouts)
        self.on_collected(rollouts)
        self._clock.lap("collect")
        return rollouts


class LearningHere(Pace):
    """Updates begin in the calling thread. What acts has learned then; critics may go on until `settle`, which the next update
    calls as well."""

    def __init__(
        self,
        trainer: PolicyTrainer,
        statistics: Statistics,
        collector: RolloutCollector,
        clock: PhaseClock,
        reward_rule: RewardRule,
        collecting: Collecting = contextlib.nullcontext,
    ) -> None:
        super().__init__(collector, clock, reward_rule, collecting)
        self._trainer, self._statistics = trainer, statistics
        self._finish: Finish | None = None
        self._after_update: list[Callable[[], None]] = []

    @property
    def num_env_steps(self) -> int:
        return self._trainer.num_env_steps

    def after_update(self, act: Callable[[], None]) -> None:
        if self._finish is None:
            act()
        else:
            self._after_update.append(act)

    def settle(self) -> None:
        if self._finish is None:
            return
        finish, self._finish = self._finish, None
        self._statistics.add(finish())
        for act in self._after_update:
            act()
        self._after_update.clear()
        self._clock.lap("learn")

    def close(self) -> None:
        """Only after an error is there anything left to finish, and that error is the one to tell of."""
        with contextlib.suppress(TrainingDivergedError):
            self.settle()


class InTurns(LearningHere):
    """Collect, learn, collect, learn."""

    def advance(self, num_steps: int) -> None:
        rollouts = self._collect(self._trainer.policy_version, num_steps)
        self.settle()
        self._statistics.add(self._rule_metrics)  # not before: the row of the last update may have waited for `settle`
        self._trainer.receive(rollouts)
        self._finish = self._trainer.begin()
        self._clock.lap("learn")


class _Bell(PolicyQueue[PolicySnapshot]):
    """Rings when a new version is published, inside the update that made it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def put(self, item: PolicySnapshot) -> None:
        del item
        self._ring()


class Overlapping(Pace):
    """Collects while a thread drives the trainer."""

    def __init__(
        self,
        trainer: RolloutTrainer,
        acting: Mapping[str, Policy],
        collector: RolloutCollector,
        clock: PhaseClock,
        reward_rule: RewardRule,
    ) -> None:
        super().__init__(collector, clock, reward_rule)
        self._trainer, self._acting = trainer, acting
        self._version = trainer.learner.policy_version
        self._num_env_steps = trainer.get_step
        collector.explore(trainer.learner.exploration(trainer.policies))
        self._trajectories: TrajectoryQueue[Rollouts] = TrajectoryQueue(capacity=1)
        self._policies: PolicyQueue[PolicySnapshot] = PolicyQueue()
        trainer.subscribe_trajectory_queue(self._trajectories)
        trainer.publish_policy_queue(self._policies)
        trainer.publish_policy_queue(_Bell(lambda: None if self.on_updated is None else self.on_updated()))
        self._thread = threading.Thread(target=self._learn, name="trainer", daemon=True)
        self._thread.start()

    @property
    def num_env_steps(self) -> int:
        return self._num_env_steps

    @property
    def learns_beside(self) -> bool:
        return True

    def advance(self, num_steps: int) -> None:
        newest = self._policies.take()
        if newest is not None:
            self._version = newest.version
            for name, policy in self._acting.items():
                policy.load_state_dict(newest.parameters[name])
            self._collector.explore(newest.exploration)
        rollouts = self._collect(self._version, num_steps)
        self._trainer.stats_reporter.add(self._rule_metrics)
        # The collector reuses its columns two blocks later, when the trainer may still read these.
        self._trajectories.put({name: copied_rollout(rollout) for name, rollout in rollouts.items()})
        self._clock.lap("wait")
        first = next(iter(rollouts.values()))
        self._num_env_steps += first.num_steps * len(first.header.env_ids)

    def settle(self) -> None:
        self._trajectories.drain()
        self._clock.lap("wait")

    def close(self) -> None:
        self._trajectories.close()
        self._thread.join(JOIN_TIMEOUT_S)

    def _learn(self) -> None:
        try:
            while True:
                self._trainer.advance()
        except QueueClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the collecting thread raises it
            self._trajectories.close(error)
