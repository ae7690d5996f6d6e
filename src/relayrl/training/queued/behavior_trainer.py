"""The contract of queue-driven trainers, with Unity ML-Agents' names: `Trainer`.

Acting and learning meet in queues: trajectories come in, policies go out, and `advance()` moves on by whatever there is.

    trainer = RolloutTrainer("CartPole-v1", settings, make_policy, make_learner, statistics)
    trainer.add_policy("agent", trainer.create_policy("agent", group))
    trajectories, policies = TrajectoryQueue(), PolicyQueue()
    trainer.subscribe_trajectory_queue(trajectories)
    trainer.publish_policy_queue(policies)
    while trainer.should_still_train:
        trajectories.put(collect(policies.take()))     # waits while the trainer is behind
        trainer.advance()                              # in the same thread, or in another one
    trainer.save_model()

A *behaviour* is a policy group. This file says what every trainer can do; `rl_trainer` does it for reinforcement learning.
The trainers of `RelayRLTrainer` are such trainers too: their queues take trajectories as well as rollouts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import UnknownNameError
from relayrl.models.acting.exploration import Exploration
from relayrl.models.policy import Policy
from relayrl.training.queued.queues import PolicyQueue, TrajectoryQueue
from relayrl.training.statistics.run_statistics import RECENT_EPISODES, Statistics
from relayrl.training.trainer_settings import TrainerSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """Every behaviour's policy at one version: its parameters, and how it explores; never changed once published."""

    version: int
    parameters: dict[str, dict[str, Tensor]]
    exploration: dict[str, Exploration] = field(default_factory=dict)


class Trainer(ABC, Generic[T]):
    """Learns one or several behaviours from trajectories of type `T`."""

    def __init__(self, brain_name: str, trainer_settings: TrainerSettings, stats_reporter: Statistics) -> None:
        self.brain_name, self.trainer_settings, self.stats_reporter = brain_name, trainer_settings, stats_reporter
        self.is_training = True
        """Whether trajectories are learned from; otherwise they only count in `reward_buffer`."""
        self.reward_buffer: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._policies: dict[str, Policy] = {}
        self.policy_queues: list[PolicyQueue[PolicySnapshot]] = []
        self.trajectory_queues: list[TrajectoryQueue[T]] = []

    @property
    def threaded(self) -> bool:
        """Whether `advance` is meant to run in a thread of its own."""
        return self.trainer_settings.threaded

    @property
    def get_max_steps(self) -> int:
        """Environment steps of the whole training."""
        return self.trainer_settings.max_steps

    @property
    @abstractmethod
    def get_step(self) -> int:
        """Environment steps received so far."""

    @property
    def should_still_train(self) -> bool:
        """Whether it is training, and there are steps left."""
        return self.is_training and self.get_step < self.get_max_steps

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policies by behaviour."""
        return self._policies

    @abstractmethod
    def create_policy(self, behavior_id: str, behavior_spec: AgentGroup) -> Policy:
        """A new policy for a behaviour that was met for the first time."""

    def add_policy(self, behavior_id: str, policy: Policy) -> None:
        """Train `policy` as that behaviour's."""
        self._policies[behavior_id] = policy

    def get_policy(self, behavior_id: str) -> Policy:
        """The policy of a behaviour."""
        if behavior_id not in self.policies:
            raise UnknownNameError("behaviour", behavior_id, self.policies)
        return self.policies[behavior_id]

    def publish_policy_queue(self, policy_queue: PolicyQueue[PolicySnapshot]) -> None:
        """Put every new version into `policy_queue` from now on."""
        self.policy_queues.append(policy_queue)

    def subscribe_trajectory_queue(self, trajectory_queue: TrajectoryQueue[T]) -> None:
        """Learn from what `trajectory_queue` brings."""
        self.trajectory_queues.append(trajectory_queue)

    @abstractmethod
    def advance(self) -> None:
        """Take what the queues hold, update if there is enough, publish what came of it.

        Writes a row of statistics every `summary_freq` steps, and a checkpoint every `checkpoint_interval`.
        """

    @abstractmethod
    def save_model(self) -> None:
        """Write a checkpoint."""

    @abstractmethod
    def end_episode(self) -> None:
        """All environments were reset from outside: forget running episodes."""
