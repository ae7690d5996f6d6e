"""A policy of MLPs without torch, as learning needs it: what it computes and how it is differentiated, on its live parameters.

Tests hold every number to the torch module's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from relayrl.data.trees import Array, map_tree
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.box_heads import GaussianHead
from relayrl.models.compiled_perceptron import compiled_network
from relayrl.models.mlp_policy import NORMALIZERS, encodes_in_numpy, is_built_in
from relayrl.models.perceptron import NumpyPerceptron, Perceptron, is_plain
from relayrl.models.policy import Policy
from relayrl.models.shared_rows import SharedRows


def runs_in_numpy(*networks: nn.Module, learns: bool = False) -> bool:
    """Whether the networks are unchanged MLPs on the CPU; those that learn, with no parameter that is not to."""
    return all(is_plain(n) and (not learns or all(p.requires_grad for p in n.parameters())) for n in networks)


def features_in_numpy(policy: Policy) -> Callable[[Any], Array]:
    """[M, F] what the policy's networks see of a NumPy tree with one leading axis, by the faster way where there is one."""
    if encodes_in_numpy(policy):
        return policy.features_numpy

    def features(obs: Any) -> Array:
        with torch.no_grad():
            return np.asarray(policy.features(map_tree(torch.from_numpy, obs)).numpy())

    return features


def judges_in_numpy(policy: ActorCritic, *, learns: bool = False) -> bool:
    """The same of `NumpyActorCritic`, with its values; where it learns, of `DifferentiableActorCritic`."""
    is_whole = is_built_in(policy) and policy.return_normalizer in NORMALIZERS
    if learns and isinstance(policy.head, GaussianHead):
        is_whole = is_whole and policy.log_std.requires_grad and not policy.log_std._backward_hooks
    return is_whole and runs_in_numpy(policy.actor, policy.critic, learns=learns)


class ForwardPass(Protocol):
    """A network's outputs."""

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of `x` [M, I], overwritten by the next call."""


class PerceptronPass(ForwardPass, Protocol):
    """An MLP's outputs, of rows that share parts too."""

    def forward(self, x: Array | SharedRows) -> Array: ...


def numpy_network(network: nn.Module) -> NumpyPerceptron:
    """The NumPy side of a network for which `runs_in_numpy`: what can be differentiated."""
    assert isinstance(network, Perceptron)
    return NumpyPerceptron(network)


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


class DifferentiableActorCritic(NumpyActorCritic):
    """The same with gradients."""

    _actor: NumpyPerceptron
    _critic: NumpyPerceptron

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__(policy, numpy_network)
        self._likelihood = policy.head

    def backward_distribution(
        self, parameters: Array, action: Array, logp_gradient: Array, entropy_gradient: float
    ) -> None:
        """Gradients of the actor, after `distribution` gave `parameters`.

        `logp_gradient` [M] is the loss's derivative by each action's log-probability, `entropy_gradient` that by each
        row's entropy.
        """
        gradient = self._likelihood.parameter_gradient(parameters, action, logp_gradient, entropy_gradient)
        if isinstance(self._likelihood, GaussianHead):
            mean_gradient, log_std_gradient = np.split(gradient, 2, -1)
            assert self.policy.log_std.grad is not None
            np.sum(log_std_gradient, 0, out=self.policy.log_std.grad.numpy())
            gradient = mean_gradient * self._likelihood.half_range
        self._actor.backward(gradient)

    def backward_value(self, gradient: Array) -> None:
        """Gradients of the critic, after `normalized_value`; `gradient` [M] is the loss's by each value."""
        self._critic.backward(gradient[:, None])
