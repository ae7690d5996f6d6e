"""What algorithms that learn from their own rollouts have in common: preparing rows, stepping two networks, passes over data.

An `update` takes the rollouts of one policy version:

1. one batched forward pass for values, successor values and, where the actor did not record them, log-probabilities;
2. advantages, by the algorithm's rule, cut by termination only;
3. passes over the valid rows in shuffled minibatches, the algorithm's number for the policy and for the value;
4. the policy's passes stop where the objective's KL limit is exceeded, before the step that would go on.

Forward passes and gradient steps are `torch_update`, or what the caller's `Backend` has instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from relayrl.algorithms.losses import NOT_FINITE_IS_RAISED, Objective, PolicyLoss
from relayrl.algorithms.on_policy_params import OnPolicyParams
from relayrl.algorithms.optimizer import FlatAdam, require_distinct
from relayrl.algorithms.returns import explained_variance, gae, normalized, with_successor_values
from relayrl.algorithms.updates.torch_update import Batch, Estimates, Evaluation, Finish, Metrics, PassPlan, TorchUpdate
from relayrl.data.trees import Array, map_tree

if TYPE_CHECKING:
    from relayrl.algorithms.critics.joint_observations import CentralInputs
    from relayrl.algorithms.poca.team_update import TeamUpdate
    from relayrl.algorithms.updates.device_update import DeviceUpdate
    from relayrl.data.columns import Rollout
    from relayrl.data.trees import Space
    from relayrl.models.heads.action_head import LikelihoodHead
    from relayrl.models.network_settings import NetworkSettings
    from relayrl.models.networks.input_layout import InputLayout
    from relayrl.models.networks.network_factory import NetworkFactory
    from relayrl.models.policy import ActorCritic
    from relayrl.models.teams.team_critic import TeamCritic


def _update(*parts: Any) -> TorchUpdate:
    from relayrl.algorithms.updates.image_update import reference_update

    return reference_update(*parts)


def _team_update(*parts: Any) -> TeamUpdate:
    from relayrl.algorithms.poca.team_update import TeamUpdate

    return TeamUpdate(*parts)


@dataclass(frozen=True, slots=True)
class Backend:
    """What carries an algorithm out: the reference, on any device, unless something faster is given."""

    gae: Callable[..., Array] = gae
    update: Callable[[ActorCritic, Objective, FlatAdam, FlatAdam], TorchUpdate] = _update
    team_update: Callable[[TeamCritic, FlatAdam], TeamUpdate] = _team_update


REFERENCE = Backend()


class OnPolicyAlgorithm(ABC):
    """Trains one `ActorCritic` from rollouts of its own making."""

    needs_aligned_agents: ClassVar[bool] = False
    """Whether an update must see the agents of an environment side by side, though its critic is no central one."""
    rollout_steps: int | None = None
    """Steps `T` of a whole rollout: a shorter one, which ends a run, is passed over in minibatches of the usual size."""
    make_loss: Callable[[Any], PolicyLoss] | None = None
    """A user's policy loss, made of the params, instead of the algorithm's."""

    def __init__(
        self,
        policy: ActorCritic,
        params: OnPolicyParams,
        rng: np.random.Generator,
        *,
        policy_passes: int,
        value_passes: int,
        backend: Backend,
    ) -> None:
        self.policy, self.params, self._rng, self._backend = policy, params, rng, backend
        self._policy_passes, self._value_passes = policy_passes, value_passes
        require_distinct(policy.actor_parameters(), policy.critic_parameters())
        self.actor_optimizer = FlatAdam(policy.actor_parameters(), params.pi_lr, params.max_grad_norm)
        self.critic_optimizer = FlatAdam(policy.critic_parameters(), params.vf_lr, params.max_grad_norm)

    @classmethod
    def make_policy(
        cls,
        observation_space: Space,
        action_space: Space,
        network: NetworkSettings,
        params: Any,
        generator: torch.Generator,
        central: InputLayout | None,
        kernels: NetworkFactory | None,
        head: LikelihoodHead | None = None,
    ) -> ActorCritic:
        """What it trains; the critic sees `central`, where that is given, instead of the observation."""
        from relayrl.models.recurrent_policy import actor_critic

        del params
        return actor_critic(observation_space, action_space, network, generator, central, kernels, head)

    @cached_property
    def _update(self) -> TorchUpdate:
        """Made when it is first asked for, so that it sees what was changed between construction and training."""
        return self._backend.update(self.policy, self.minimised(), self.actor_optimizer, self.critic_optimizer)

    def device_update(self, make: Callable[[ActorCritic, Objective, FlatAdam, FlatAdam], DeviceUpdate]) -> DeviceUpdate:
        """What takes the steps of a run that stays on its device."""
        return make(self.policy, self.minimised(), self.actor_optimizer, self.critic_optimizer)

    @abstractmethod
    def objective(self) -> Objective:
        """What an update minimises, by the params as they are."""

    def minimised(self) -> Objective:
        """`objective`, with a user's loss where there is one."""
        own = replace(self.objective(), value_coef=self.params.value_coef)
        return own if self.make_loss is None else replace(own, policy_loss=self.make_loss(self.params))

    def configure(self, params: OnPolicyParams) -> None:
        """Go on with other numbers, such as a lower rate, from the next update on."""
        self.params = params
        if "_update" in vars(self):
            self._update.objective = self.minimised()

    @abstractmethod
    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        """[T, L] how much better each action was than expected; `next_value` as `returns` describes it."""

    def estimates(self, rollout: Rollout, evaluation: Evaluation, next_value: Array) -> Estimates:
        """What `evaluation` makes of a rollout whose policy is the one that learns."""
        advantage = self.advantages(rollout, evaluation.value, next_value)
        return Estimates(evaluation.logp, advantage, advantage + evaluation.value)

    def gae(self, rollout: Rollout, value: Array, next_value: Array, *, gamma: float, lam: float) -> Array:
        """[T, L] generalised advantage estimates of a rollout, as `returns` describes them."""
        flags = (rollout.terminated, rollout.truncated, rollout.valid)
        return self._backend.gae(rollout.reward, value, next_value, *flags, gamma=gamma, lam=lam)

    def usable_rows(self, rollout: Rollout) -> Array:
        """[T, L] rows that are trained on: those on which the lane acted."""
        return rollout.valid

    def update(self, rollouts: list[Rollout], progress: float, central: list[CentralInputs] | None = None) -> Metrics:
        """Learn from `rollouts`, of which a central critic sees `central`, when `progress` in [0, 1] of the run is over."""
        return self.begin(rollouts, progress, central)()

    @NOT_FINITE_IS_RAISED
    def begin(
        self,
        rollouts: list[Rollout],
        progress: float,
        central: list[CentralInputs] | None = None,
        fresh: Sequence[Array | None] | None = None,
    ) -> Finish:
        """Begin an `update`: the actor has learned when this returns, the critic when what it gives was called. Until then
        the rollouts must stay as they are, and nobody may look at the critic.

        `fresh` are the rows [T, L] of each rollout that may be trained on, None for all of them; the others are context."""
        factor = self.params.lr_schedule.factor(progress)
        self.actor_optimizer.lr, self.critic_optimizer.lr = self.params.pi_lr * factor, self.params.vf_lr * factor
        views: Sequence[CentralInputs | None] = [None] * len(rollouts) if central is None else central
        rows = [None] * len(rollouts) if fresh is None else fresh
        parts = [self._prepare(*part) for part in zip(rollouts, views, rows, strict=True)]
        batch = type(parts[0]).joined(parts)
        if not len(batch):
            return dict
        metrics = {
            "value/explained_variance": explained_variance(batch.old_value, batch.target),
            "value/mean": float(batch.old_value.mean()),
            "policy/learning_rate": self.actor_optimizer.lr,
            "value/learning_rate": self.critic_optimizer.lr,
        }
        self._normalize(batch)
        finish = self._begin_passes(batch, sum(len(rollout.reward) for rollout in rollouts))
        self._update_normalizers(rollouts, central)
        return lambda: metrics | finish()

    def _prepare(self, rollout: Rollout, central: CentralInputs | None, fresh: Array | None = None) -> Batch:
        """The rollout's valid rows with advantages and value targets."""
        seen = None if central is None else central.normalized(self.policy.critic_normalizer)
        evaluation = self._update.evaluate(rollout, seen)
        next_value = with_successor_values(evaluation.value, rollout.successors, evaluation.successor_value)
        learned = self.estimates(rollout, evaluation, next_value)
        usable = self.usable_rows(rollout) if fresh is None else self.usable_rows(rollout) & fresh
        return self._update.batch(rollout, evaluation, learned, usable)

    def _normalize(self, batch: Batch) -> None:
        if self.params.normalize_advantages:
            batch.advantage = normalized(batch.advantage, batch.weight)
        if batch.weight is not None:
            batch.advantage, batch.weight = batch.advantage * batch.weight, None
        if self.params.normalize_returns:
            # What the critic's output was: under the new moments it would seem to have moved before its first step.
            batch.old_value = self._update.normalized_returns(batch.old_value)
            self.policy.return_normalizer.update(self._update.tensor(batch.target[:, None]))
            batch.target = self._update.normalized_returns(batch.target)

    def _begin_passes(self, batch: Batch, num_steps: int) -> Finish:
        return self._update.begin(batch, self._plan(batch, num_steps, self._policy_passes, self._value_passes))

    def _plan(self, rows: Sized, num_steps: int, policy_passes: int, value_passes: int) -> PassPlan:
        """Passes over `rows` that were made of rollouts of so many steps."""
        whole_steps = max(num_steps, self.rollout_steps or 0)
        # ⌈M · whole / steps / minibatches⌉: as many rows as a minibatch of a whole rollout has.
        minibatch_rows = -(-len(rows) * whole_steps // (num_steps * self.params.num_minibatches))
        return PassPlan(len(rows), policy_passes, value_passes, minibatch_rows, self._rng)

    def _update_normalizers(self, rollouts: list[Rollout], central: list[CentralInputs] | None) -> None:
        """Last of all: acting, log-probabilities and training of one rollout must see the same normalisation."""
        if self.policy.normalizer is not None:
            for rollout in rollouts:
                raw = self.policy.encoder(map_tree(self._update.tensor, rollout.obs))
                self.policy.normalizer.update(raw[self._update.tensor(rollout.valid)])
        if self.policy.critic_normalizer is not None:
            for rollout, view in zip(rollouts, central or [], strict=True):
                # Rows that the critic is trained on; others may be of agents that are not there, or fill up a stack.
                rows = view.rows if rollout.valid.all() else view.rows[np.flatnonzero(rollout.valid)]
                if len(rows):
                    mean, variance = (self._update.tensor(moment) for moment in rows.moments())
                    self.policy.critic_normalizer.merge(mean, variance, len(rows))

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next update, besides the policy itself."""
        optimizers = {"pi": self.actor_optimizer.state_dict(), "vf": self.critic_optimizer.state_dict()}
        return {"optimizers": optimizers, "rng": self._rng.bit_generator.state, "gradients": self._update.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.actor_optimizer.load_state_dict(state["optimizers"]["pi"])
        self.critic_optimizer.load_state_dict(state["optimizers"]["vf"])
        self._rng.bit_generator.state = state["rng"]
        self._update.load_state_dict(state.get("gradients", {}))
