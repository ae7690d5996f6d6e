"""What a trainer is: takes rollouts, updates every group's policy, counts.

    while trainer.num_env_steps < trainer.max_steps:
        trainer.receive(rollouts)      # one rollout per policy group, of the same worlds and steps
        metrics = trainer.advance()    # update as far as what was received allows

Whoever has something better to do than to wait for the critics calls `finish = trainer.begin()`, and `finish()` later.

It schedules; the mathematics is the algorithm's, acting is the collector's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relayrl.data.columns import Rollout
from relayrl.models.exploration import Exploration

if TYPE_CHECKING:
    from relayrl.algorithms.minibatch_passes import Finish
    from relayrl.algorithms.policy_gradients import Metrics
    from relayrl.models.policy import Policy


class PolicyTrainer(ABC):
    """Schedules the algorithms of a run."""

    needs_states: bool = False
    """Whether rollouts must hold the global states of their worlds."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.num_env_steps = 0
        self.policy_version = 0

    def receive(self, rollouts: Mapping[str, Rollout]) -> None:
        """Take one rollout per group."""
        first = next(iter(rollouts.values()))
        self.num_env_steps += first.num_steps * len(first.header.env_ids)
        self._keep(rollouts)

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

    @property
    def is_warming_up(self) -> bool:
        """Whether actions should still be random."""
        return False

    def exploration(self, policies: Mapping[str, Policy]) -> dict[str, Exploration]:
        """How actors of `policies` should explore now."""
        return {name: Exploration(self.is_warming_up, policy.head.noise_scale) for name, policy in policies.items()}

    def worlds_restarted(self) -> None:  # noqa: B027 - rollouts that are learned from once need nothing
        """Called after a resume that could not continue the episodes: nothing may continue across that break."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the future of the run, policies included."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
