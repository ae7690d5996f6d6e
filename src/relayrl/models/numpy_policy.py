"""A policy of MLPs without torch: what it computes, on its live parameters.

Acting on the CPU goes through here, with compiled networks where there are any. Tests hold every number to the torch module's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from relayrl.data.trees import Array, map_tree
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.box_heads import DeterministicHead, GaussianHead, SquashedGaussianHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.compiled_perceptron import compiled_network
from relayrl.models.discrete_heads import BernoulliHead, CategoricalHead, MultiCategoricalHead
from relayrl.models.networks import ObservationEncoder, RunningNormalizer
from relayrl.models.perceptron import NumpyPerceptron, Perceptron, is_plain
from relayrl.models.policy import Policy
from relayrl.models.recurrent_policy import RecurrentActorCritic
from relayrl.models.shared_rows import SharedRows

_POLICIES = BuiltIns(Policy, ActorCritic, RecurrentActorCritic)
_HEADS = BuiltIns(
    CategoricalHead, MultiCategoricalHead, BernoulliHead, GaussianHead, SquashedGaussianHead, DeterministicHead
)
_ENCODERS, _NORMALIZERS = BuiltIns(ObservationEncoder), BuiltIns(RunningNormalizer)


def runs_in_numpy(*networks: nn.Module, learns: bool = False) -> bool:
    """Whether the networks are unchanged MLPs on the CPU; those that learn, with no parameter that is not to."""
    return all(is_plain(n) and (not learns or all(p.requires_grad for p in n.parameters())) for n in networks)


def encodes_in_numpy(policy: Policy) -> bool:
    """Whether `features_numpy` gives what `features` does."""
    normalizer = policy.normalizer
    is_known = policy.encoder in _ENCODERS and (normalizer is None or normalizer in _NORMALIZERS)
    return is_known and _POLICIES.keeps(policy, "features", "features_numpy")


def features_in_numpy(policy: Policy) -> Callable[[Any], Array]:
    """[M, F] what the policy's networks see of a NumPy tree with one leading axis, by the faster way where there is one."""
    if encodes_in_numpy(policy):
        return policy.features_numpy

    def features(obs: Any) -> Array:
        with torch.no_grad():
            return np.asarray(policy.features(map_tree(torch.from_numpy, obs)).numpy())

    return features


def is_built_in(policy: Policy) -> bool:
    """Whether everything around a policy's networks is unchanged, so that `NumpyPolicy` knows it."""
    return policy in _POLICIES and policy.head in _HEADS and encodes_in_numpy(policy)


def acts_in_numpy(policy: Policy) -> bool:
    """Whether `NumpyPolicy` gives what the policy does."""
    return is_built_in(policy) and runs_in_numpy(policy.actor)


def judges_in_numpy(policy: ActorCritic) -> bool:
    """The same of `NumpyActorCritic`, with its values."""
    return (
        is_built_in(policy) and policy.return_normalizer in _NORMALIZERS and runs_in_numpy(policy.actor, policy.critic)
    )


class ForwardPass(Protocol):
    """A network's outputs."""

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of `x` [M, I], overwritten by the next call."""


class PerceptronPass(ForwardPass, Protocol):
    """An MLP's outputs, of rows that share parts too."""

    def forward(self, x: Array | SharedRows) -> Array: ...


def fast_network(network: nn.Module) -> PerceptronPass:
    """The fastest forward pass of a network for which `runs_in_numpy`."""
    assert isinstance(network, Perceptron)
    return compiled_network(network) or NumpyPerceptron(network)


class NumpyPolicy:
    """The policy's functions for rows `[M, …]`; arrays that it returns are overwritten by its next call."""

    def __init__(self, policy: Policy, make_network: Callable[[nn.Module], ForwardPass] = fast_network) -> None:
        self.policy, self.head = policy, policy.head
        self._actor = make_network(policy.actor)
        if isinstance(self.head, GaussianHead):
            self._log_std = policy.log_std.detach().numpy()
            self._log_scale = np.log(self.head.half_range)

    def features(self, obs: Any) -> Array:
        """[M, F] what the networks see."""
        return self.policy.features_numpy(obs)

    def distribution(self, features: Array, mask: Array | None) -> Array:
        """[M, P] parameters of the action distribution, as the head lays them out."""
        return self.distribution_of(self._actor.forward(features), mask)

    def distribution_of(self, outputs: Array, mask: Array | None) -> Array:
        """The same from the actor network's outputs."""
        if isinstance(self.head, GaussianHead):
            mean = outputs * self.head.half_range + self.head.center
            log_std = np.broadcast_to(self._log_std + self._log_scale, mean.shape)
            return np.concatenate([mean, log_std], -1)
        return self.head.parameters_numpy(outputs, mask)


class NumpyActorCritic(NumpyPolicy):
    """The functions of an `ActorCritic`."""

    policy: ActorCritic

    def __init__(self, policy: ActorCritic, make_network: Callable[[nn.Module], PerceptronPass] = fast_network) -> None:
        super().__init__(policy, make_network)
        self._critic, self._moments = make_network(policy.critic), policy.return_normalizer

    def normalized_value(self, seen: Array | SharedRows) -> Array:
        """[M] the critic's output, in normalised returns."""
        return self._critic.forward(seen)[:, 0]

    def value(self, seen: Array | SharedRows) -> Array:
        """[M] the value in units of reward."""
        return np.asarray(self.normalized_value(seen) / self._moments.scale.numpy() + self._moments.shift.numpy())
