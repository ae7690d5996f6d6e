"""`RLTrainer`: the queue-driven life of a reinforcement learner; `RolloutTrainer`: the one over this package's trainers.

    advance():  trajectory queues ─▶ _process_trajectory ─▶ _is_ready_update? ─▶ _update_policy ─▶ policy queues

A custom trainer overrides the four underscored or abstract methods. Not its job: collecting, threads (`engines.local`), and
the mathematics.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.models.policy import Policy
from relayrl.training.queued.behavior_trainer import PolicySnapshot, Trainer
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainer_settings import TrainerSettings
from relayrl.training.trainers.policy_trainer import PolicyTrainer

T = TypeVar("T")
Learner = TypeVar("Learner")
Rollouts = Mapping[str, Rollout]
IDLE_WAIT_S = 0.05
"""How long a threaded `advance` waits for a trajectory before it gives its caller a chance to stop."""


class RLTrainer(Trainer[T], Generic[T, Learner]):
    """Takes trajectories, updates when there are enough, publishes policies."""

    def __init__(self, brain_name: str, trainer_settings: TrainerSettings, stats_reporter: Statistics) -> None:
        super().__init__(brain_name, trainer_settings, stats_reporter)
        self._learner: Learner | None = None

    @property
    def learner(self) -> Learner:
        """What learns, made when it is first needed."""
        if self._learner is None:
            self._learner = self.create_optimizer()
        return self._learner

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
                if self._is_ready_update() and self._update_policy():
                    self._publish()
                queue.done()

    def _publish(self) -> None:
        if self.policy_queues:
            snapshot = self._snapshot()
            for queue in self.policy_queues:
                queue.put(snapshot)


class RolloutTrainer(RLTrainer[Rollouts, PolicyTrainer]):
    """Drives an on-policy or off-policy trainer; a trajectory is a block of rollouts, one per behaviour."""

    def __init__(
        self,
        brain_name: str,
        trainer_settings: TrainerSettings,
        make_policy: Callable[[str, AgentGroup], Policy],
        make_learner: Callable[[Mapping[str, Policy]], PolicyTrainer],
        stats_reporter: Statistics,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(brain_name, trainer_settings, stats_reporter)
        self._make_policy, self._make_learner, self._save = make_policy, make_learner, save
        self._returns: dict[str, LaneReturns] = {}
        self._num_pending = 0
        self._lag = 0.0

    @property
    def get_step(self) -> int:
        return 0 if self._learner is None else self._learner.num_env_steps

    def create_policy(self, behavior_id: str, behavior_spec: AgentGroup) -> Policy:
        return self._make_policy(behavior_id, behavior_spec)

    def create_optimizer(self) -> PolicyTrainer:
        return self._make_learner(self.policies)

    def _process_trajectory(self, trajectory: Rollouts) -> None:
        for name, rollout in trajectory.items():
            returns = self._returns.setdefault(name, LaneReturns(rollout.num_lanes))
            self.reward_buffer.extend(returns.add(rollout.reward, rollout.ended, rollout.failed))
            self._lag = self.learner.policy_version - float(rollout.policy_version.mean())
        self.learner.receive(trajectory)
        self._num_pending += 1

    def _is_ready_update(self) -> bool:
        return self._num_pending > 0

    def _update_policy(self) -> bool:
        version = self.learner.policy_version
        started = time.perf_counter()
        # A learner that looks at the lag itself knows it better.
        self.stats_reporter.add({"policy/lag_versions": self._lag} | self.learner.advance())
        self.stats_reporter.add({"time/update_seconds": time.perf_counter() - started})
        self._num_pending = 0
        return self.learner.policy_version != version

    def _snapshot(self) -> PolicySnapshot:
        parameters = {
            name: {key: tensor.detach().clone() for key, tensor in policy.state_dict().items()}
            for name, policy in self.policies.items()
        }
        return PolicySnapshot(self.learner.policy_version, parameters, self.learner.exploration(self.policies))

    def save_model(self) -> None:
        self._save()

    def end_episode(self) -> None:
        self._returns.clear()


class LaneReturns:
    """Returns of the episodes of `L` lanes over successive blocks."""

    def __init__(self, num_lanes: int) -> None:
        self._running = np.zeros(num_lanes)

    def add(self, reward: Array, ended: Array, failed: Array) -> list[float]:
        """Add a block `[T, L]`; gives the returns of lanes that ended, failed ones left out."""
        finished: list[float] = []
        for t in range(len(reward)):
            self._running += reward[t]
            if ended[t].any():
                finished += self._running[ended[t] & ~failed[t]].tolist()
                self._running[ended[t]] = 0.0
        return finished
