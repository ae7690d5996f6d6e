"""What a trainer is: takes rollouts or trajectories, updates every group's policy, counts.

    while trainer.num_env_steps < trainer.max_steps:
        trainer.receive(rollouts)      # one rollout per policy group, of the same environments and steps
        metrics = trainer.advance()    # update as far as what was received allows

Whoever has something better to do than to wait for the critics calls `finish = trainer.begin()`, and `finish()` later.

Everything that trains drives this object: the engine by rollouts, `RolloutTrainer` by queues, `TrajectoryTrainer` by
trajectories. What differs between learning from rollouts once and learning from replay is a method here, so that nobody asks
which kind a trainer is. It schedules; the mathematics is the algorithm's, acting is the collector's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from relayrl.accelerator.live_actor import live_actor
from relayrl.config.settings import Settings
from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.stacking import count_env_steps
from relayrl.errors import CheckpointError, ConfigError
from relayrl.models.acting.exploration import Exploration
from relayrl.training.trainers.policy_groups import CriticColumns, Groups, side_by_side

if TYPE_CHECKING:
    from relayrl.algorithms.updates.torch_update import Finish, Metrics
    from relayrl.models.acting.actor import Actor
    from relayrl.models.policy import Policy
    from relayrl.training.imitation.behavioral_cloning import BehavioralCloning, ClonedPolicy


class PolicyTrainer(ABC):
    """Schedules the algorithms of a run."""

    needs_states: bool = False
    """Whether rollouts must hold the global states of their environments."""
    needs_aligned_agents: bool = False
    """Whether rollouts of trajectories must have all agents of an environment on the same rows."""
    needs_records: bool = False
    """Whether it learns from what was recorded only, and nothing is to be collected."""
    uses_logp: bool = True
    """Whether rollouts should hold the log-probabilities of their actions, where that costs nothing."""
    takes_params_per_group: bool = True
    """Whether each group may have hyper-parameters of its own."""
    settable: tuple[str, ...] = ()
    """Hyper-parameters, as the settings name them, that may change while a run goes on."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.num_env_steps = 0
        self.policy_version = 0
        self.num_dropped_stale_steps = 0
        """Agents' steps that were received and not trained on, because their policy was too old (`on_policy_trainer`)."""
        self.num_skipped_updates = 0
        """Updates for which nothing was left."""
        self.cloning: BehavioralCloning | None = None
        """What imitates demonstrations after every update, where the run asks for it."""

    def cloned_policies(self) -> dict[str, ClonedPolicy]:
        """The policies, with what steps their actors, for `cloning`."""
        raise ConfigError(f"{type(self).__name__} takes no behavioral_cloning beside its updates; use ppo, poca or sac")

    def cloning_state(self) -> dict[str, Any]:
        """What a state holds of `cloning`."""
        return {} if self.cloning is None else {"cloning": self.cloning.state_dict()}

    def load_cloning_state(self, state: Mapping[str, Any]) -> None:
        """Continue `cloning`; where the state has none, it begins."""
        if self.cloning is not None and "cloning" in state:
            self.cloning.load_state_dict(state["cloning"])

    def rollout_steps(self, time_horizon: int, num_envs: int) -> int:
        """Steps of each of `num_envs` environments per rollout, where the settings say `time_horizon`."""
        del num_envs
        return time_horizon

    def actor_for(self, policy: Policy) -> Actor:
        """What collects for this trainer with `policy`, one of those that it trains or a copy."""
        return live_actor(policy)

    @property
    def is_warming_up(self) -> bool:
        """Whether actions should still be random."""
        return False

    def exploration(self, policies: Mapping[str, Policy]) -> dict[str, Exploration]:
        """How actors of `policies` should explore now."""
        return {name: Exploration(self.is_warming_up, policy.head.noise_scale) for name, policy in policies.items()}

    def receive(self, rollouts: Mapping[str, Rollout]) -> None:
        """Take one rollout per group."""
        first = next(iter(rollouts.values()))
        self.num_env_steps += len(first.reward) * len(first.header.env_ids)
        self._keep(rollouts)

    def bound_policy_lag(self, max_policy_lag: int) -> None:  # noqa: B027 - replay takes steps of any policy
        """Leave out steps that are older, where the algorithm does not correct for their age and was given no bound."""

    def params_of(self, group: str) -> Settings:
        """The hyper-parameters of a group as they are now."""
        raise ConfigError(f"{type(self).__name__} has no hyper-parameters that change during a run; set them before it")

    def configure(self, group: str, params: Any) -> None:  # noqa: B027 - nothing is settable unless a trainer says so
        """Go on with other `settable` numbers of a group."""

    def hold_envs(self, num_envs: int) -> None:  # noqa: B027 - rollouts that are learned from once may be of any number
        """Prepare for rollouts of `num_envs` environments, if nothing of another number was kept."""

    def expect_rollouts(self, num_steps: int) -> None:  # noqa: B027 - replay takes rollouts of any length
        """Prepare for rollouts of `num_steps` steps, of which the last of a run may be shorter."""

    def receive_trajectories(
        self, trajectories: Sequence[Trajectory], groups: Groups, num_counted_steps: int = 0
    ) -> None:
        """Take trajectories of `groups`, whose policies these are; of their environments' steps, some were counted before."""
        num_env_steps = self.num_env_steps + count_env_steps(trajectories) - num_counted_steps
        self.receive(side_by_side(trajectories, groups, aligned=self.needs_aligned_agents))
        self.num_env_steps = num_env_steps  # without the rows that fill up shorter lanes

    @abstractmethod
    def _keep(self, rollouts: Mapping[str, Rollout]) -> None: ...

    @abstractmethod
    def advance(self) -> Metrics:
        """Learn from what was received; gives metrics, prefixed by the group's name where there are several groups."""

    def begin(self) -> Finish:
        """Like `advance`, but only what acts has learned when this returns; the rest goes on beside the caller until that has
        finished it. Before then, rollouts that were received must stay as they are, and a state cannot be taken."""
        metrics = self.advance()
        return lambda: metrics

    def take_one_environment_at_a_time(self) -> None:  # noqa: B027 - rollouts that are learned from once need nothing
        """Prepare for trajectories, whose environments come one after the other, before anything was received."""

    def learn_from_records(self) -> None:
        """Prepare for learning without collecting: `fill` takes the records, and `count_without_collecting` paces."""
        raise ConfigError("--from needs an algorithm that learns from replay; use td3, sac or ddpg, or bc")

    def fill(self, rollouts: Mapping[str, Rollout]) -> None:
        """Take what was recorded, without counting it as collected."""
        self._keep(rollouts)

    def count_without_collecting(self, num_steps: int) -> None:
        """Learn in the next `advance` as if so many steps had been collected."""
        self.num_env_steps += num_steps

    def environments_restarted(self) -> None:  # noqa: B027 - rollouts that are learned from once need nothing
        """Called after a resume that could not continue the episodes: nothing may continue across that break."""

    def critic_columns(self, group: str) -> CriticColumns | None:
        """What the critic of a group is fed, where it sees all agents; None where it sees one."""
        del group
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the future of the run, policies included."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""


class GroupAlgorithm(Protocol):
    """What one group learns by."""

    @property
    def policy(self) -> Policy: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def group_states(algorithms: Mapping[str, GroupAlgorithm]) -> dict[str, Any]:
    """Policy and algorithm of each group, for a checkpoint."""
    return {
        name: {"policy": algorithm.policy.state_dict(), "algorithm": algorithm.state_dict()}
        for name, algorithm in algorithms.items()
    }


def load_group_states(algorithms: Mapping[str, GroupAlgorithm], states: Mapping[str, Any]) -> None:
    """Continue from `group_states`."""
    for name, algorithm in algorithms.items():
        algorithm.policy.load_state_dict(states[name]["policy"])
        algorithm.load_state_dict(states[name]["algorithm"])


def require_same_groups(saved: Collection[str], own: Collection[str]) -> None:
    """Raise where a checkpoint is of other groups than the run's `own`."""
    if set(saved) != set(own):
        raise CheckpointError(f"checkpoint has groups {sorted(saved)}, the run {sorted(own)}")
