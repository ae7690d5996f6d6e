"""Updates of DDPG, TD3 and SAC by compiled kernels: the same steps as `replay_actor_critic`, for MLPs on the CPU.

`accelerated` recognises exactly the built-in algorithms with built-in parts; everything else runs the reference. Random numbers
are drawn in the reference's order, so that both take the same steps but for rounding; tests hold them to each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from relayrl.accelerator.replay_choices import Choice
from relayrl.accelerator.replay_group import AcceleratedGroup
from relayrl.accelerator.replay_rows import LocalRows, rows_of
from relayrl.algorithms.critics.state_features import StateFeatures
from relayrl.algorithms.losses import NOT_FINITE_IS_RAISED, require_finite
from relayrl.algorithms.off_policy import Metrics, OffPolicyAlgorithm
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3, DeterministicActorCritic
from relayrl.algorithms.updates.replay_actor_critic import ReplayActorCritic
from relayrl.algorithms.updates.replay_batch import GroupBatch
from relayrl.data.trees import Array
from relayrl.models.networks.built_in import BuiltIns

Batch = Mapping[str, GroupBatch[Array]]
Update = Callable[[Any], tuple[Metrics, Array]]
_STATES = BuiltIns(StateFeatures)
A = TypeVar("A", bound=ReplayActorCritic[Any])


@dataclass(slots=True)
class NextActions:
    """What a group would do next, and what that is worth besides the Q-networks' values."""

    action: Array  # [M, N, A]
    bonus: Array | float = 0.0  # [M, N]


class AcceleratedUpdate(ABC, Generic[A]):
    """The twin of a `ReplayActorCritic`'s `update`."""

    def __init__(self, algorithm: A, groups: Mapping[str, AcceleratedGroup], rows: LocalRows) -> None:
        self.algorithm, self.groups, self._rows = algorithm, groups, rows

    @abstractmethod
    def next_actions(self, group: str, own: GroupBatch[Array]) -> NextActions:
        """What `group` would do after the batch's transitions."""

    @abstractmethod
    def update_policies(self, batch: Batch) -> Metrics:
        """Improve the policies and move the targets, if it is their turn."""

    def update(self, transitions: Any) -> tuple[Metrics, Array]:
        """`OffPolicyAlgorithm.update`."""
        self.algorithm.num_updates += 1
        batch = self.batch(transitions)
        following = {name: self.next_actions(name, own) for name, own in batch.items()}
        metrics, weight = Metrics(), transitions.weight[:, None]
        errors = np.zeros(len(transitions), np.float32)
        for name in self.groups:
            target = self.target_values(name, batch, following)
            own_metrics, error = self.update_critics(name, batch, target, weight)
            metrics |= self.algorithm.prefixed(name, own_metrics)
            errors = np.maximum(errors, error)
        return metrics | self.update_policies(batch), errors

    def batch(self, transitions: Any) -> Batch:
        """`OffPolicyAlgorithm.batch`, in NumPy."""
        batch = {name: self.groups[name].batch(rows) for name, rows in transitions.groups.items()}
        state = self.algorithm.state
        if state is not None:
            now, after = state.features_numpy(transitions.state), state.features_numpy(transitions.next_state)
            for own in batch.values():
                own.state, own.next_state = now, after
        return batch

    def target_values(self, name: str, batch: Batch, following: Mapping[str, NextActions]) -> Array:
        """[M, N] what the Q-networks of a group should give for the batch's actions."""
        next_features = {other: part.next_features for other, part in batch.items()}
        actions = {other: next_.action for other, next_ in following.items()}
        seen, own = {other: part.next_valid for other, part in batch.items()}, batch[name]
        alone = own.valid & ~own.next_valid & (own.discount > 0)
        inputs = self._rows.next_inputs(name, next_features, actions, seen, alone, own.next_state)
        value = self.groups[name].target_min_q(inputs) + following[name].bonus
        return np.asarray(own.reward + own.discount * value, np.float32)

    @NOT_FINITE_IS_RAISED
    def update_critics(self, name: str, batch: Batch, target: Array, weight: Array) -> tuple[Metrics, Array]:
        """Step the Q-networks of a group; gives metrics and TD errors [M], the largest of the agents that acted."""
        group, own = self.groups[name], batch[name]
        inputs = self._rows.inputs(name, _features(batch), _actions(batch), own.state)
        share = own.share * weight
        values, loss = group.critics.regress(inputs, target.reshape(-1, 1), share.reshape(-1, 1))
        require_finite(loss, "Q", "critic_lr")
        norm = float(group.learner.critic_optimizer.step())
        first = values[0].reshape(target.shape)
        error = np.maximum.reduce(np.abs(first - target) * own.valid, 1)
        return {"value/loss": loss, "value/gradient_norm": norm, "value/mean": float(np.vdot(first, own.share))}, error

    @NOT_FINITE_IS_RAISED
    def update_policy(self, name: str, batch: Batch, entropy_weight: float) -> tuple[Metrics, Choice]:
        """Step the policy of a group on E[α log π(a|s) − min_i Q_i(s, a)]."""
        group, own = self.groups[name], batch[name]
        choice = group.choose(own.features, own.mask, self.algorithm.rng)
        inputs = self._rows.inputs(name, _features(batch), _actions(batch), own.state)
        action, share = self._rows.own(name, choice.action.reshape(own.action.shape)), own.share.reshape(-1)
        minimum, by_action = group.policy_critics.min_q(inputs, action, -share)
        loss = float(np.vdot(entropy_weight * choice.logp - minimum, share))
        require_finite(loss, "policy", "actor_lr")
        group.actor.backward(choice.output_gradient(by_action, np.float32(entropy_weight) * share))
        norm = float(group.learner.actor_optimizer.step())
        return self.algorithm.prefixed(name, {"policy/loss": loss, "policy/gradient_norm": norm}), choice


class AcceleratedDDPG(AcceleratedUpdate[DeterministicActorCritic[Any]]):
    """Of DDPG."""

    def smoothed(self, action: Array) -> Array:
        """The target policy's action as the targets are asked about it."""
        return action

    def next_actions(self, group: str, own: GroupBatch[Array]) -> NextActions:
        exact = self.groups[group].choose_as_target(own.next_features, own.next_mask, self.algorithm.rng).action
        return NextActions(self.smoothed(exact).reshape(own.action.shape))

    def update_policies(self, batch: Batch) -> Metrics:
        if self.algorithm.num_updates % self.algorithm.policy_frequency:
            return {}
        metrics = Metrics()
        for name in self.groups:
            metrics |= self.update_policy(name, batch, entropy_weight=0.0)[0]
        for group in self.groups.values():
            group.soft_update()
        return metrics


class AcceleratedTD3(AcceleratedDDPG):
    """Of TD3."""

    def smoothed(self, action: Array) -> Array:
        params = self.algorithm.params
        noise = self.algorithm.rng.standard_normal(action.shape, dtype=np.float32) * np.float32(params.policy_noise)
        limit = np.float32(params.noise_clip)
        noisy = action + np.minimum(np.maximum(noise, -limit), limit)  # np.clip costs three times as much
        return np.asarray(np.minimum(np.maximum(noisy, np.float32(-1.0)), np.float32(1.0)))


class AcceleratedSAC(AcceleratedUpdate[SAC]):
    """Of SAC."""

    def __init__(self, algorithm: SAC, groups: Mapping[str, AcceleratedGroup], rows: LocalRows) -> None:
        super().__init__(algorithm, groups, rows)
        self._target_entropy = {name: algorithm.target_entropy(name).item() for name in groups}

    def next_actions(self, group: str, own: GroupBatch[Array]) -> NextActions:
        choice = self.groups[group].choose_as_target(own.next_features, own.next_mask, self.algorithm.rng)
        bonus = np.float32(-float(self.algorithm.temperature(group))) * np.asarray(choice.logp).reshape(
            own.reward.shape
        )
        return NextActions(choice.action.reshape(own.action.shape), bonus)

    def update_policies(self, batch: Batch) -> Metrics:
        metrics, algorithm = Metrics(), self.algorithm
        for name, group in self.groups.items():
            alpha, own = float(algorithm.temperature(name)), batch[name]
            own_metrics, choice = self.update_policy(name, batch, alpha)
            entropy = -float(np.vdot(np.asarray(choice.logp).reshape(own.reward.shape), own.share))
            if algorithm.params.learns_temperature:
                self._update_temperature(name, entropy, own)
            group.soft_update()
            metrics |= own_metrics | algorithm.prefixed(name, {"policy/entropy": entropy, "policy/temperature": alpha})
        return metrics

    def _update_temperature(self, name: str, entropy: float, own: GroupBatch[Array]) -> None:
        target = self._target_entropy[name]
        if own.mask is not None:
            of_rows = self.algorithm.target_entropy(name, torch.from_numpy(own.mask)).numpy()
            target = float(np.vdot(of_rows, own.share)) if of_rows.ndim else target
        optimizer = self.algorithm.temperature_optimizers[name]
        optimizer.gradient.fill_(entropy - target)  # ∂L_α / ∂ log α
        optimizer.step()


_TWINS: tuple[tuple[BuiltIns, type[AcceleratedUpdate[Any]]], ...] = (
    (BuiltIns(DDPG), AcceleratedDDPG),
    (BuiltIns(TD3), AcceleratedTD3),
    (BuiltIns(SAC), AcceleratedSAC),
)


def accelerated(algorithm: OffPolicyAlgorithm[Any]) -> AcceleratedUpdate[Any] | None:
    """The twin of an algorithm; None where the reference must run."""
    twin = next((twin for known, twin in _TWINS if algorithm in known), None)
    if twin is None or not isinstance(algorithm, ReplayActorCritic):
        return None
    if algorithm.state is not None and algorithm.state not in _STATES:
        return None
    rows, groups = rows_of(algorithm.view), {}
    for name, learner in algorithm.groups.items():
        groups[name] = AcceleratedGroup.of(learner, algorithm.num_policy_critics)
    if rows is None or any(group is None for group in groups.values()):
        return None
    return twin(algorithm, {name: group for name, group in groups.items() if group is not None}, rows)


def _features(batch: Batch) -> dict[str, Array]:
    return {name: own.features for name, own in batch.items()}


def _actions(batch: Batch) -> dict[str, Array]:
    return {name: own.action for name, own in batch.items()}
