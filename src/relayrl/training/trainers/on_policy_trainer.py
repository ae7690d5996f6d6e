"""The on-policy trainer: every rollout is learned from once, by the policy that made it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from relayrl.algorithms.critics.joint_observations import CentralCritics, CentralInputs
from relayrl.algorithms.on_policy import OnPolicyAlgorithm
from relayrl.algorithms.updates.torch_update import Finish, Metrics
from relayrl.data.columns import Rollout
from relayrl.errors import CheckpointError
from relayrl.training.trainers.policy_groups import CriticColumns
from relayrl.training.trainers.policy_trainer import PolicyTrainer


class OnPolicyTrainer(PolicyTrainer):
    """Trains one algorithm per policy group in lockstep with collection."""

    def __init__(
        self, algorithms: Mapping[str, OnPolicyAlgorithm], max_steps: int, central: CentralCritics | None = None
    ) -> None:
        """With `central`, critics see what that makes of their environment."""
        super().__init__(max_steps)
        self.central = central
        self.needs_states = central is not None and central.sees_state
        self.needs_aligned_agents = central is not None
        self._algorithms = dict(algorithms)
        self._pending: dict[str, list[Rollout]] = {group: [] for group in algorithms}
        self._num_steps_learned = 0
        self._is_finished = True

    def _keep(self, rollouts: Mapping[str, Rollout]) -> None:
        for group, rollout in rollouts.items():
            self._pending[group].append(rollout)

    def advance(self) -> Metrics:
        return self.begin()()

    def begin(self) -> Finish:
        self._require_finished()
        progress = min(1.0, self._num_steps_learned / self.max_steps)
        received, self._pending = self._pending, {group: [] for group in self._algorithms}
        views = None if self.central is None else _views(self.central, received)
        metrics: Metrics = {}
        rest: Finish = dict
        for group, algorithm in self._algorithms.items():
            metrics |= rest()
            own = algorithm.begin(received[group], progress, None if views is None else views[group])
            rest = partial(_named, "" if len(self._algorithms) == 1 else f"{group}/", own)
        self.policy_version += 1
        self._num_steps_learned = self.num_env_steps
        self._is_finished = False
        return partial(self._finish, metrics, rest)

    def _finish(self, metrics: Metrics, rest: Finish) -> Metrics:
        try:
            return metrics | rest()
        finally:  # one that diverged is over as well
            self._is_finished = True

    def _require_finished(self) -> None:
        if not self._is_finished:
            raise RuntimeError("an update was begun and not finished: its critic is still learning")

    def critic_columns(self, group: str) -> CriticColumns | None:
        if self.central is None:
            return None
        sight = self.central.sight(group)
        widths = {name: algorithm.policy.encoder.num_features for name, algorithm in self._algorithms.items()}
        num_state_features = self.central.num_state_features if sight.state else 0
        return CriticColumns(widths if sight.observations else {}, num_state_features, action_widths={})

    def state_dict(self) -> dict[str, Any]:
        self._require_finished()
        groups = {
            name: {"policy": algorithm.policy.state_dict(), "algorithm": algorithm.state_dict()}
            for name, algorithm in self._algorithms.items()
        }
        return {"num_env_steps": self.num_env_steps, "policy_version": self.policy_version, "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._require_finished()
        if set(state["groups"]) != set(self._algorithms):
            raise CheckpointError(
                f"checkpoint has groups {sorted(state['groups'])}, the run {sorted(self._algorithms)}"
            )
        self.num_env_steps, self.policy_version = state["num_env_steps"], state["policy_version"]
        self._num_steps_learned = self.num_env_steps
        for name, algorithm in self._algorithms.items():
            algorithm.policy.load_state_dict(state["groups"][name]["policy"])
            algorithm.load_state_dict(state["groups"][name]["algorithm"])


def _named(prefix: str, finish: Finish) -> Metrics:
    return {prefix + name: number for name, number in finish().items()}


def _views(central: CentralCritics, received: Mapping[str, list[Rollout]]) -> dict[str, list[CentralInputs]]:
    views: dict[str, list[CentralInputs]] = {group: [] for group in received}
    for block in zip(*received.values(), strict=True):
        for group, view in central.inputs(dict(zip(received, block, strict=True))).items():
            views[group].append(view)
    return views
