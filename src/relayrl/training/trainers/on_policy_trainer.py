"""The on-policy trainer: every rollout is learned from once, by the policy that made it or one not much newer.

Policy lag is decided here, where data enters the update. A row's lag is how many versions the trainer's policy is ahead of the
one that acted. Rows that lag by more than the algorithm's `max_policy_lag` are dropped: they are not trained on, and counted.
They stay in view of the rows around them, as rewards, as values, and in what central critics see of other agents. A block of
which no row is left is not kept at all, and an update without blocks is skipped: no new version, no gradient step. Without a
bound nothing is dropped: V-trace algorithms weigh each row by how far the policy has moved, others take it as it is.

Metrics of every update are `policy/lag_versions` and `policy/lag_versions_max` of what was received for it and, where there is
a bound, `data/dropped_stale_steps` and `data/skipped_updates`. Totals are the trainer's `num_dropped_stale_steps` and
`num_skipped_updates`. A version beyond the trainer's, as actors have after it went back to a checkpoint, lags by 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from relayrl.algorithms.critics.joint_observations import CentralCritics, CentralInputs
from relayrl.algorithms.on_policy import OnPolicyAlgorithm
from relayrl.algorithms.on_policy_params import OnPolicyParams
from relayrl.algorithms.updates.torch_update import Finish, Metrics
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.training.trainers.policy_groups import CriticColumns
from relayrl.training.trainers.policy_trainer import PolicyTrainer, group_states, load_group_states, require_same_groups

if TYPE_CHECKING:
    from relayrl.training.imitation.behavioral_cloning import ClonedPolicy

_log = logging.getLogger("relayrl.training.trainers.on_policy_trainer")


@dataclass(slots=True)
class ReceivedLags:
    """How far the policies were behind that acted on the rows received for one update."""

    num_steps: int = 0
    sum_versions: int = 0
    max_versions: int = 0
    num_dropped: int = 0

    def add(self, lags: Array, num_dropped: int) -> None:
        """Count the decisions of a rollout, `lags` of each."""
        if len(lags):
            self.num_steps += len(lags)
            self.sum_versions += int(lags.sum())
            self.max_versions = max(self.max_versions, int(lags.max()))
            self.num_dropped += num_dropped

    def metrics(self) -> Metrics:
        """Mean and largest lag."""
        mean = self.sum_versions / max(self.num_steps, 1)
        return {"policy/lag_versions": mean, "policy/lag_versions_max": float(self.max_versions)}


class OnPolicyTrainer(PolicyTrainer):
    """Trains one algorithm per policy group in lockstep with collection."""

    def __init__(
        self, algorithms: Mapping[str, OnPolicyAlgorithm], max_steps: int, central: CentralCritics | None = None
    ) -> None:
        """With `central`, critics see what that makes of their environment."""
        super().__init__(max_steps)
        self.central = central
        self.needs_states = central is not None and central.sees_state
        needs = any(algorithm.needs_aligned_agents for algorithm in algorithms.values())
        self.needs_aligned_agents = needs or central is not None
        self._algorithms = dict(algorithms)
        self._pending: dict[str, list[Rollout]] = {group: [] for group in algorithms}
        self._fresh: dict[str, list[Array | None]] = {group: [] for group in algorithms}
        self._lags = ReceivedLags()
        self._num_steps_learned = 0
        self._is_finished = True
        self._misses_logp = False

    @property
    def algorithms(self) -> Mapping[str, OnPolicyAlgorithm]:
        """The algorithm of every group."""
        return self._algorithms

    def _keep(self, rollouts: Mapping[str, Rollout]) -> None:
        num_dropped = self._lags.num_dropped
        fresh = {group: self._fresh_rows(group, rollout) for group, rollout in rollouts.items()}
        self._count_dropped(self._lags.num_dropped - num_dropped)
        has_rows = (
            bool((rollout.valid if rows is None else rollout.valid & rows).any())
            for rollout, rows in zip(rollouts.values(), fresh.values(), strict=True)
        )
        if self._lags.num_dropped > num_dropped and not any(has_rows):
            return
        for group, rollout in rollouts.items():
            # Values of an older policy are computed anew.
            is_older = rollout.value is not None and bool((rollout.policy_version != self.policy_version).any())
            self._pending[group].append(replace(rollout, value=None) if is_older else rollout)
            self._fresh[group].append(fresh[group])

    def _fresh_rows(self, group: str, rollout: Rollout) -> Array | None:
        """[T, L] the rows that are young enough to be trained on; None: all of them."""
        algorithm = self._algorithms[group]
        lag = np.maximum(self.policy_version - rollout.policy_version, 0)
        own = lag[rollout.valid]
        bound = algorithm.params.max_policy_lag
        num_dropped = 0 if bound is None else int(np.count_nonzero(own > bound))
        self._lags.add(own, num_dropped)
        if algorithm.params.corrects_policy_lag and rollout.logp is None and own.any() and not self._misses_logp:
            self._misses_logp = True
            _log.warning(
                "group %s: steps of older policies came without log-probabilities, so that their lag is not corrected for; "
                "record `logp` when acting, or set max_policy_lag=0",
                group,
            )
        return lag <= bound if num_dropped and bound is not None else None

    def _count_dropped(self, num_steps: int) -> None:
        if num_steps and not self.num_dropped_stale_steps:
            _log.warning(
                "%d steps of policies older than max_policy_lag versions are dropped; data/dropped_stale_steps counts them",
                num_steps,
            )
        self.num_dropped_stale_steps += num_steps

    def bound_policy_lag(self, max_policy_lag: int) -> None:
        for algorithm in self._algorithms.values():
            algorithm.configure(algorithm.params.with_policy_lag_bound(max_policy_lag))

    settable = ("pi_lr", "vf_lr", "clip_ratio", "entropy_coef", "target_kl", "value_clip", "gamma", "lam")

    def params_of(self, group: str) -> OnPolicyParams:
        return self._algorithms[group].params

    def configure(self, group: str, params: Any) -> None:
        self._algorithms[group].configure(params)

    def cloned_policies(self) -> dict[str, ClonedPolicy]:
        from relayrl.training.imitation.behavioral_cloning import ClonedPolicy

        return {
            name: ClonedPolicy(each.policy, each.actor_optimizer, each.params.pi_lr)
            for name, each in self._algorithms.items()
        }

    def expect_rollouts(self, num_steps: int) -> None:
        for algorithm in self._algorithms.values():
            algorithm.rollout_steps = num_steps

    def advance(self) -> Metrics:
        return self.begin()()

    def begin(self) -> Finish:
        self._require_finished()
        progress = min(1.0, self._num_steps_learned / self.max_steps)
        received, self._pending = self._pending, {group: [] for group in self._algorithms}
        fresh, self._fresh = self._fresh, {group: [] for group in self._algorithms}
        metrics = self._taken_lags(is_skipped=not any(received.values()))
        self._num_steps_learned = self.num_env_steps
        if not any(received.values()):
            self.num_skipped_updates += 1
            return lambda: metrics
        views = None if self.central is None else _views(self.central, received)
        rest: Finish = dict
        for group, algorithm in self._algorithms.items():
            metrics |= rest()
            own = algorithm.begin(received[group], progress, None if views is None else views[group], fresh[group])
            rest = partial(_named, "" if len(self._algorithms) == 1 else f"{group}/", own)
        if self.cloning is not None:
            metrics |= self.cloning.update(self.num_env_steps)
        self.policy_version += 1
        self._is_finished = False
        return partial(self._finish, metrics, rest)

    def _taken_lags(self, *, is_skipped: bool) -> Metrics:
        """Metrics of what was received for this update."""
        lags, self._lags = self._lags, ReceivedLags()
        metrics = lags.metrics()
        if any(algorithm.params.max_policy_lag is not None for algorithm in self._algorithms.values()):
            metrics |= {"data/dropped_stale_steps": float(lags.num_dropped), "data/skipped_updates": float(is_skipped)}
        return metrics

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
        return {
            "num_env_steps": self.num_env_steps,
            "policy_version": self.policy_version,
            "num_dropped_stale_steps": self.num_dropped_stale_steps,
            "num_skipped_updates": self.num_skipped_updates,
            "groups": group_states(self._algorithms),
            **self.cloning_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._require_finished()
        require_same_groups(state["groups"], self._algorithms)
        self.num_env_steps, self.policy_version = state["num_env_steps"], state["policy_version"]
        self._num_steps_learned = self.num_env_steps
        self.num_dropped_stale_steps = state.get("num_dropped_stale_steps", 0)
        self.num_skipped_updates = state.get("num_skipped_updates", 0)
        load_group_states(self._algorithms, state["groups"])
        self.load_cloning_state(state)


def _named(prefix: str, finish: Finish) -> Metrics:
    return {prefix + name: number for name, number in finish().items()}


def _views(central: CentralCritics, received: Mapping[str, list[Rollout]]) -> dict[str, list[CentralInputs]]:
    views: dict[str, list[CentralInputs]] = {group: [] for group in received}
    for block in zip(*received.values(), strict=True):
        for group, view in central.inputs(dict(zip(received, block, strict=True))).items():
            views[group].append(view)
    return views
