"""What algorithms that learn from their own rollouts have in common: preparing rows, stepping two networks, passes over data.

An `update` takes the rollouts of one policy version:

1. one batched forward pass for values, successor values and, where the actor did not record them, log-probabilities;
2. advantages, by the algorithm's rule, cut by termination only;
3. passes over the valid rows in shuffled minibatches, the algorithm's number for the policy and for the value;
4. the policy's passes stop where the objective's KL limit is exceeded, before the step that would go on.

Gradients are `policy_gradients`, the passes `minibatch_passes`; this file prepares what they need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from relayrl.algorithms.compiled_passes import CompiledPasses, runs_compiled
from relayrl.algorithms.divergence import NOT_FINITE_IS_RAISED
from relayrl.algorithms.joint_observations import CentralInputs
from relayrl.algorithms.minibatch_passes import Finish, MinibatchPasses, StepwisePasses, make_plan
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.params import OnPolicyParams
from relayrl.algorithms.policy_gradients import (
    LOSSES,
    AutogradGradients,
    Batch,
    Gradients,
    Metrics,
    NumpyGradients,
    Objective,
    PolicyLoss,
)
from relayrl.algorithms.recurrent_gradients import RecurrentGradients
from relayrl.algorithms.returns import explained_variance, normalized, with_successor_values
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.errors import ConfigError
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.numpy_policy import judges_in_numpy
from relayrl.models.recurrent_policy import RecurrentActorCritic


class OnPolicyAlgorithm(ABC):
    """Trains one `ActorCritic` from rollouts of its own making."""

    def __init__(
        self,
        policy: ActorCritic,
        params: OnPolicyParams,
        objective: Objective,
        rng: np.random.Generator,
        *,
        policy_passes: int,
        value_passes: int,
    ) -> None:
        self.policy, self._params, self._rng = policy, params, rng
        self._policy_passes, self._value_passes = policy_passes, value_passes
        self._pi_optimizer = FlatAdam(policy.actor_parameters(), params.pi_lr, params.max_grad_norm)
        self._vf_optimizer = FlatAdam(policy.critic_parameters(), params.vf_lr, params.max_grad_norm)
        self._objective = objective

    # Both are made when they are first asked for, and so see what was changed between construction and training.

    @cached_property
    def _gradients(self) -> Gradients:
        return gradients_of(self.policy, self._objective)

    @cached_property
    def _passes(self) -> MinibatchPasses:
        optimizers = (self._pi_optimizer, self._vf_optimizer)
        if runs_compiled(self.policy, self._objective, *optimizers):
            return CompiledPasses(self.policy, self._objective, *optimizers)
        return StepwisePasses(self._gradients, *optimizers)

    @abstractmethod
    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        """[T, L] how much better each action was than expected; `next_value` as `returns` describes it."""

    def usable_rows(self, rollout: Rollout) -> Array:
        """[T, L] rows that are trained on: those on which the lane acted."""
        return rollout.valid

    def update(self, rollouts: list[Rollout], progress: float, central: list[CentralInputs] | None = None) -> Metrics:
        """Learn from `rollouts`; `progress` in [0, 1] is the share of the run that is over. Gives metrics.

        A central critic needs what it sees of each rollout in `central`.
        """
        return self.begin(rollouts, progress, central)()

    @NOT_FINITE_IS_RAISED
    def begin(self, rollouts: list[Rollout], progress: float, central: list[CentralInputs] | None = None) -> Finish:
        """Begin an `update`: the actor has learned when this returns, the critic when what it gives was called. Until then
        the rollouts must stay as they are, and nobody may look at the critic."""
        factor = self._params.lr_schedule.factor(progress)
        self._pi_optimizer.lr, self._vf_optimizer.lr = self._params.pi_lr * factor, self._params.vf_lr * factor
        views: Sequence[CentralInputs | None] = [None] * len(rollouts) if central is None else central
        parts = [self._prepare(rollout, view) for rollout, view in zip(rollouts, views, strict=True)]
        batch = type(parts[0]).joined(parts)
        if not len(batch):
            return dict
        metrics = {
            "value/explained_variance": explained_variance(batch.old_value, batch.target),
            "value/mean": float(batch.old_value.mean()),
            "policy/learning_rate": self._pi_optimizer.lr,
            "value/learning_rate": self._vf_optimizer.lr,
        }
        self._normalize(batch)
        finish = self._begin_passes(batch)
        self._update_normalizers(rollouts, central)
        return lambda: metrics | finish()

    def _prepare(self, rollout: Rollout, central: CentralInputs | None) -> Batch:
        """The rollout's valid rows with advantages and value targets."""
        judged = self._gradients.judge(rollout, None if central is None else self._normalized(central))
        next_value = with_successor_values(judged.value, rollout.successors, judged.successor_value)
        advantage = self.advantages(rollout, judged.value, next_value)
        return self._gradients.batch(rollout, judged, advantage, self.usable_rows(rollout))

    def _normalize(self, batch: Batch) -> None:
        if self._params.normalize_advantages:
            batch.advantage = normalized(batch.advantage)
        if self._params.normalize_returns:
            moments = self.policy.return_normalizer
            shift, scale = moments.shift.numpy(), moments.scale.numpy()  # views: they move with the moments
            # What the critic's output was: under the new moments it would seem to have moved before its first step.
            batch.old_value = (batch.old_value - shift) * scale
            moments.update(torch.from_numpy(batch.target[:, None]))
            batch.target = (batch.target - shift) * scale

    def _begin_passes(self, batch: Batch) -> Finish:
        passes = {"policy_passes": self._policy_passes, "value_passes": self._value_passes}
        plan = make_plan(self._rng, len(batch), **passes, num_minibatches=self._params.num_minibatches)
        return self._passes.begin(batch, plan)

    def _normalized(self, central: CentralInputs) -> CentralInputs:
        n = self.policy.critic_normalizer
        if n is None:
            return central
        shift, scale, clip = n.shift.numpy(), n.scale.numpy(), n.clip

        def scaled(table: Array, columns: slice) -> Array:
            return np.asarray(np.clip((table - shift[columns]) * scale[columns], -clip, clip))

        return CentralInputs(central.rows.with_tables(scaled), central.successors.with_tables(scaled))

    def _update_normalizers(self, rollouts: list[Rollout], central: list[CentralInputs] | None) -> None:
        """Last of all: acting, log-probabilities and training of one rollout must see the same normalisation."""
        if self.policy.normalizer is not None:
            for rollout in rollouts:
                raw = self.policy.encoder(map_tree(torch.from_numpy, rollout.obs))
                self.policy.normalizer.update(raw[torch.from_numpy(rollout.valid)])
        if self.policy.critic_normalizer is not None:
            for view in central or []:
                mean, variance = (torch.from_numpy(moment) for moment in view.rows.moments())
                self.policy.critic_normalizer.merge(mean, variance, len(view.rows))

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next update, besides the policy itself."""
        optimizers = {"pi": self._pi_optimizer.state_dict(), "vf": self._vf_optimizer.state_dict()}
        gradients = self._gradients.state_dict()
        return {"optimizers": optimizers, "rng": self._rng.bit_generator.state, "gradients": gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._pi_optimizer.load_state_dict(state["optimizers"]["pi"])
        self._vf_optimizer.load_state_dict(state["optimizers"]["vf"])
        self._rng.bit_generator.state = state["rng"]
        self._gradients.load_state_dict(state.get("gradients", {}))


def gradients_of(policy: ActorCritic, objective: Objective) -> Gradients:
    """The fastest way to differentiate this objective of this policy."""
    _require_reference(objective.policy_loss)
    if isinstance(policy, RecurrentActorCritic):
        return RecurrentGradients(policy, objective)
    is_known = objective.policy_loss in LOSSES and judges_in_numpy(policy, learns=True)
    return (NumpyGradients if is_known else AutogradGradients)(policy, objective)


def _require_reference(loss: PolicyLoss) -> None:
    """A loss that was changed is taken from `loss`: whoever changes its twin alone would not be obeyed."""
    kind = type(loss)
    if kind.loss_and_slope is not PolicyLoss.loss_and_slope and loss not in LOSSES:
        definers = [next(base for base in kind.__mro__ if name in vars(base)) for name in ("loss", "loss_and_slope")]
        if definers[0] is not definers[1] and issubclass(definers[1], definers[0]):
            raise ConfigError(
                f"{kind.__name__} overrides loss_and_slope() and not loss(), by which losses other than RelayRL's are trained; "
                "override loss()"
            )
