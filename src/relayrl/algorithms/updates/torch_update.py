"""The reference of an on-policy update, in torch and on the policy's device: evaluate a rollout, then take gradient steps.

A `Batch` holds the rows that are learned from, a `PassPlan` says which of them are passed over when: shuffled minibatches.
`recurrent_update` is the same for policies with a memory; the accelerator takes the same steps by kernels.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.losses import NOT_FINITE_IS_RAISED, Objective, entropy_bonus, kl_estimate, require_finite
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.data.trees import Array, index, map_tree

if TYPE_CHECKING:
    from relayrl.algorithms.critics.joint_observations import CentralInputs
    from relayrl.data.columns import Rollout
    from relayrl.models.networks.shared_rows import SharedRows
    from relayrl.models.policy import ActorCritic

Metrics = dict[str, float]
StepMetrics = dict[str, float | Tensor]  # of one gradient step; tensors on a GPU, until the update is over

Finish = Callable[[], Metrics]
"""Waits for the rest of an update that was begun; returns its metrics."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy makes of a rollout, before it is changed: rows M = T · L, and the K successors of the rollout."""

    features: Array  # [M, F]
    central: SharedRows | None  # [M, C] what a central critic sees instead
    value: Array  # [T, L] in units of reward
    successor_value: Array  # [K]
    logp: Array  # [M] of the actions, as recorded or as the policy has it


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is learned from a rollout."""

    logp: Array  # [M] of the actions, by the policy that the one that learns is compared with
    advantage: Array  # [T, L]
    target: Array  # [T, L] of the values
    weight: Array | None = None  # [T, L] of the advantages, which are normalised before they are weighed


@dataclass(slots=True)
class Batch:
    """Rows that are trained on, flattened to one axis M; features are what the networks see."""

    features: Array
    action: Any  # an array, or a tree of them
    mask: Array | None
    logp: Array
    advantage: Array
    target: Array
    old_value: Array
    central: SharedRows | None = None  # what a central critic sees instead of the features
    weight: Array | None = None  # of the advantages, until they are weighed

    @classmethod
    def of(cls, rollout: Rollout, evaluation: Evaluation, learned: Estimates) -> Batch:
        """All rows of a rollout, on which the lane acted or not."""
        action, mask, value = flat_rows(rollout.action), flat_rows(rollout.action_mask), flat_rows(evaluation.value)
        advantage, target, weight = (flat_rows(c) for c in (learned.advantage, learned.target, learned.weight))
        own = (evaluation.features, action, mask, learned.logp, advantage, target, value)
        return Batch(*own, evaluation.central, weight)

    @property
    def critic_features(self) -> Array | SharedRows:
        """What the critic sees."""
        return self.features if self.central is None else self.central

    def __len__(self) -> int:
        return len(self.advantage)

    @property
    def num_rows(self) -> int:
        """Over which losses are means."""
        return len(self)

    def columns(self) -> tuple[Array | SharedRows | None, ...]:
        """All columns, in the order of the fields."""
        own = (self.features, self.action, self.mask, self.logp, self.advantage, self.target, self.old_value)
        return (*own, self.central, self.weight)

    def rows(self, where: Any) -> Batch:
        """Some of the rows: a view for a slice, a copy for indices."""
        return Batch(*(None if c is None else index(c, where) for c in self.columns()))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """The rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return Batch(*(joined_rows(same) for same in zip(*(part.columns() for part in parts), strict=True)))


@dataclass(frozen=True, slots=True)
class PassPlan:
    """How often the policy and the value see a batch, and in minibatches of how many rows."""

    num_rows: int
    policy_passes: int
    value_passes: int
    minibatch_rows: int
    rng: np.random.Generator

    @property
    def num_passes(self) -> int:
        """Of whichever has more."""
        return max(self.policy_passes, self.value_passes)

    def draw_order(self, num_passes: int) -> Array | None:
        """[P, M] the rows of the next passes, in the order of each; None where a single minibatch needs no order."""
        if self.minibatch_rows >= self.num_rows:
            return None
        return np.stack([self.rng.permutation(self.num_rows) for _ in range(num_passes)])


class TorchUpdate:
    """Trains a policy's actor and critic by autograd, one minibatch after the other."""

    def __init__(
        self, policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
    ) -> None:
        self.policy, self.objective = policy, objective
        self._pi_optimizer, self._vf_optimizer = pi_optimizer, vf_optimizer
        self._device, self._is_on_cpu = (device := pi_optimizer.vector.device), device.type == "cpu"
        if not self._is_on_cpu:  # what is read and run on a GPU alone
            self._columns: Any = importlib.import_module("relayrl.algorithms.updates.batch_columns")

    def evaluate(self, rollout: Rollout, central: CentralInputs | None) -> Evaluation:
        """Values and log-probabilities of a rollout; `central` is what a central critic sees of it."""
        features = self.features(flat_rows(rollout.obs))
        if central is None:
            value, successor_value = self.value(features), self.value(self.features(rollout.successors.obs))
        else:
            value, successor_value = self.value(central.rows), self.value(central.successors)
        logp = flat_rows(rollout.logp)
        if logp is None:
            logp = self.log_prob(features, flat_rows(rollout.action_mask), flat_rows(rollout.action))
        seen = None if central is None else central.rows
        return Evaluation(features, seen, value.reshape(rollout.reward.shape), successor_value, logp)

    @torch.no_grad()
    def features(self, obs: Any) -> Any:
        """[M, F] what the networks see of observations `[M, …]`; what `tensor` makes that of, where they see it encoded."""
        return self.kept(self.policy.features(map_tree(self.tensor, obs)))

    @torch.no_grad()
    def value(self, seen: Array | SharedRows) -> Array:
        """[M] values, in units of reward, of what the critic sees."""
        pieces = [seen] if isinstance(seen, np.ndarray | Tensor) else seen.pieces()
        return np.concatenate([as_array(self.policy.value(self.tensor(piece))) for piece in pieces])

    @torch.no_grad()
    def log_prob(self, features: Array, mask: Array | None, action: Any) -> Array:
        """[M] log-probabilities of actions."""
        distribution = self.policy.distribution(self.tensor(features), self.tensor(mask))
        return as_array(self.policy.head.log_prob(distribution, self.tensor(action)))

    @torch.no_grad()
    def normalized_returns(self, returns: Array) -> Array:
        """[M] returns in the unit that the critic learns in, by the moments as they are."""
        moments = self.policy.return_normalizer
        return as_array((self.tensor(returns) - moments.shift) * moments.scale)

    def current_logp(self, rollout: Rollout, evaluation: Evaluation) -> Array:
        """[M] log-probabilities of a rollout's actions by the policy as it is, whoever acted; found as training finds them."""
        return self.log_prob(evaluation.features, flat_rows(rollout.action_mask), flat_rows(rollout.action))

    def batch(self, rollout: Rollout, evaluation: Evaluation, learned: Estimates, usable: Array) -> Batch:
        """The rows of a rollout that are `usable` [T, L], for training on what is `learned` from it."""
        batch = Batch.of(rollout, evaluation, learned)
        return batch if usable.all() else batch.rows(usable.reshape(-1))

    def begin(self, batch: Batch, plan: PassPlan) -> Finish:
        """Take the plan's gradient steps, those of the policy until the KL limit is exceeded. An update may take those of the
        value beside the caller, who is not to change the batch before they are finished."""
        metrics = self._take_steps(batch if self._is_on_cpu else self._columns.on_device(batch, self._device), plan)
        return lambda: metrics

    @NOT_FINITE_IS_RAISED
    def _take_steps(self, batch: Batch, plan: PassPlan) -> Metrics:
        sums: StepMetrics = {}
        counts = {"policy": 0, "value": 0}
        trains_pi = True
        for i in range(plan.num_passes):
            trains_pi = trains_pi and i < plan.policy_passes
            trains_vf = i < plan.value_passes
            if not (trains_pi or trains_vf):
                break
            order = plan.draw_order(1)
            shuffled = batch if order is None else batch.rows(order[0])
            for start in range(0, len(batch), plan.minibatch_rows):
                rows = shuffled.rows(slice(start, start + plan.minibatch_rows))
                pi_metrics, vf_metrics = self.take_step(rows, trains_pi, trains_vf)
                trains_pi = pi_metrics is not None
                counts["policy"] += pi_metrics is not None
                counts["value"] += vf_metrics is not None
                for name, number in ((pi_metrics or {}) | (vf_metrics or {})).items():
                    sums[name] = sums.get(name, 0.0) + number
        found: dict[str, Any] = sums if self._is_on_cpu else self._columns.finite_numbers(sums)
        metrics = {name: total / counts[name.split("/")[0]] for name, total in found.items()}
        return metrics | {f"{network}/gradient_steps": float(count) for network, count in counts.items()}

    def take_step(self, rows: Batch, trains_pi: bool, trains_vf: bool) -> tuple[StepMetrics | None, StepMetrics | None]:
        """Step the policy, if its KL limit is not exceeded, and the value; gives the metrics of each that was stepped."""
        pi_metrics, vf_metrics = self.gradients(rows, trains_pi, trains_vf)
        take_optimizer_steps(pi_metrics, self._pi_optimizer, vf_metrics, self._vf_optimizer)
        return pi_metrics, vf_metrics

    def gradients(self, rows: Batch, trains_pi: bool, trains_vf: bool) -> tuple[StepMetrics | None, StepMetrics | None]:
        """Differentiate the losses of those that are trained."""
        return self.policy_gradient(rows) if trains_pi else None, self.value_gradient(rows) if trains_vf else None

    def policy_gradient(self, rows: Batch) -> StepMetrics | None:
        """Differentiate the policy's loss; None, and no gradient, where the objective's KL limit is exceeded."""
        return self.differentiate_policy(self.policy.distribution(*map(self.tensor, (rows.features, rows.mask))), rows)

    def value_gradient(self, rows: Batch) -> StepMetrics:
        """Differentiate the value's loss."""
        return self.differentiate_value(self.policy.normalized_value(self.tensor(laid_out(rows.critic_features))), rows)

    def differentiate_policy(self, distribution: Tensor, rows: Batch) -> StepMetrics | None:
        """`policy_gradient`, given the distribution's parameters [M, P] of the rows."""
        head, objective = self.policy.head, self.objective
        old_logp, advantage = self.tensor(rows.logp), self.tensor(rows.advantage)
        log_ratio = head.log_prob(distribution, self.tensor(rows.action)) - old_logp
        kl = self.number(kl_estimate(log_ratio.detach()))
        waits = self._is_on_cpu or type(objective) is not Objective or math.isfinite(objective.kl_limit)
        if waits and objective.is_exceeded_by(float(kl)):
            return None
        loss = objective.policy_loss.loss(log_ratio, advantage)
        entropy = head.entropy(distribution)
        _differentiate(loss + entropy_bonus(entropy, objective.entropy_coef), self.policy.actor_parameters())
        return {
            "policy/loss": self.number(loss.detach() + objective.policy_loss.offset(old_logp, advantage)),
            "policy/kl": kl,
            "policy/entropy": self.number(entropy.detach().mean()),
            "policy/clip_fraction": self.number(objective.policy_loss.clip_fraction(log_ratio.detach().exp())),
        }

    def differentiate_value(self, value: Tensor, rows: Batch) -> StepMetrics:
        """`value_gradient`, given the normalised values [M] of the rows."""
        loss = self.objective.value_loss(value, self.tensor(rows.old_value), self.tensor(rows.target))
        _differentiate(loss, self.policy.critic_parameters())
        return {"value/loss": self.number(loss.detach())}

    def number(self, scalar: Tensor) -> float | Tensor:
        """A metric, which stays on a device until the end of the update."""
        return float(scalar) if self._is_on_cpu else scalar

    def tensor(self, array: Any) -> Any:
        """An array on the policy's device, or a tree of them; tensors are there already, and None stays None."""
        return None if array is None else map_tree(lambda leaf: torch.as_tensor(leaf).to(self._device), array)

    def kept(self, tensor: Tensor) -> Any:
        """A column that the update goes on with: an array on the CPU, elsewhere the tensor itself."""
        return as_array(tensor) if self._is_on_cpu else tensor

    def state_dict(self) -> dict[str, Any]:
        """What must outlive an update, besides the policy and the optimisers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""


def take_optimizer_steps(
    pi: StepMetrics | None, pi_optimizer: FlatAdam, vf: StepMetrics | None, vf_optimizer: FlatAdam
) -> None:
    """Step by the gradients of those that have metrics, to which the gradients' norms are added."""
    for metrics, optimizer, name, rate in ((pi, pi_optimizer, "policy", "pi_lr"), (vf, vf_optimizer, "value", "vf_lr")):
        if metrics is not None:
            if isinstance(loss := metrics[f"{name}/loss"], float):
                require_finite(loss, name, rate)
            metrics[f"{name}/gradient_norm"] = optimizer.step()


def joined_rows(columns: Sequence[Any]) -> Any:
    """The rows of several columns, one after the other."""
    first = columns[0]
    if first is None or not isinstance(first, np.ndarray | Tensor | dict | tuple):
        return None if first is None else type(first).joined(columns)
    return map_tree(lambda *parts: (torch.cat if isinstance(parts[0], Tensor) else np.concatenate)(parts), *columns)


def flat_rows(column: Any) -> Any:
    """`[T, L, …]` as `[M, …]`."""
    if column is None:
        return None
    return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), column)


def as_array(tensor: Tensor) -> Array:
    """A tensor of any device as an array."""
    return np.asarray(tensor.cpu().numpy())


def laid_out(seen: Any) -> Any:
    """[M, I] what the critic sees, where rows may share parts."""
    return seen if isinstance(seen, np.ndarray | Tensor) else seen.laid_out()


def _differentiate(loss: Tensor, parameters: list[nn.Parameter]) -> None:
    """Write the gradients of `parameters` into their `.grad`."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
    if loss.requires_grad:  # not where every parameter is frozen
        loss.backward()  # type: ignore[no-untyped-call]
