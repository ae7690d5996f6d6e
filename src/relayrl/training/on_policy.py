"""The on-policy trainer: takes the rollouts of one policy version, updates every group's policy, publishes the next version.

    trainer.receive({"agent": rollout})     # one rollout per policy group
    metrics = trainer.advance()             # update; trainer.policy_version is one higher

It schedules; the mathematics is the algorithm's, acting is the collector's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayrl.algorithms.on_policy import OnPolicyAlgorithm
from relayrl.data.columns import Rollout
from relayrl.errors import CheckpointError


class OnPolicyTrainer:
    """Trains one algorithm per policy group in lockstep with collection."""

    def __init__(self, algorithms: Mapping[str, OnPolicyAlgorithm], max_steps: int) -> None:
        self._algorithms = dict(algorithms)
        self._max_steps = max_steps
        self._pending: dict[str, list[Rollout]] = {group: [] for group in algorithms}
        self.num_env_steps = 0
        self._num_steps_learned = 0
        self.policy_version = 0

    def receive(self, rollouts: Mapping[str, Rollout]) -> None:
        """Take one rollout per group, all of the same worlds and steps."""
        for group, rollout in rollouts.items():
            self._pending[group].append(rollout)
        first = next(iter(rollouts.values()))
        self.num_env_steps += first.num_steps * len(first.header.env_ids)

    def advance(self) -> dict[str, float]:
        """Update every policy from what was received; metrics of several groups are prefixed by the group's name."""
        progress = min(1.0, self._num_steps_learned / self._max_steps)
        metrics: dict[str, float] = {}
        for group, algorithm in self._algorithms.items():
            prefix = "" if len(self._algorithms) == 1 else f"{group}/"
            rollouts, self._pending[group] = self._pending[group], []
            metrics |= {prefix + name: number for name, number in algorithm.update(rollouts, progress).items()}
        self.policy_version += 1
        self._num_steps_learned = self.num_env_steps
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Counters, and each group's policy and algorithm."""
        groups = {
            name: {"policy": algorithm.policy.state_dict(), "algorithm": algorithm.state_dict()}
            for name, algorithm in self._algorithms.items()
        }
        return {"num_env_steps": self.num_env_steps, "policy_version": self.policy_version, "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        if set(state["groups"]) != set(self._algorithms):
            raise CheckpointError(
                f"checkpoint has groups {sorted(state['groups'])}, the run {sorted(self._algorithms)}"
            )
        self.num_env_steps, self.policy_version = state["num_env_steps"], state["policy_version"]
        self._num_steps_learned = self.num_env_steps
        for name, algorithm in self._algorithms.items():
            algorithm.policy.load_state_dict(state["groups"][name]["policy"])
            algorithm.load_state_dict(state["groups"][name]["algorithm"])
