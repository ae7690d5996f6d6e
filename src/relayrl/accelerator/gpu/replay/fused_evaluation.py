"""The networks of DDPG, TD3 and SAC as `FlatNetworks`, where algorithm, learner and networks are exactly RelayRL's own.

Losses, targets and what heads make of outputs stay the algorithm's, in torch. Targets lie in flat vectors of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relayrl.accelerator.gpu.mlp_tiles import MLPShape, mlp_shape
from relayrl.accelerator.gpu.replay.flat_networks import FlatNetworks
from relayrl.accelerator.gpu.replay.fused_heads import chosen, is_known_head
from relayrl.algorithms.off_policy import OffPolicyAlgorithm
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3
from relayrl.algorithms.updates.replay_actor_critic import CriticLearner, Evaluation
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.q_networks import QNetworks
from relayrl.models.policy import Policy

_ALGORITHMS, _LEARNERS, _EVALUATIONS = BuiltIns(DDPG, TD3, SAC), BuiltIns(CriticLearner), BuiltIns(Evaluation)
_POLICIES, _CRITICS, _OPTIMIZERS = BuiltIns(Policy), BuiltIns(QNetworks), BuiltIns(FlatAdam)


class FusedEvaluation(Evaluation):
    """Evaluates the networks that it was made of."""

    def __init__(self, learner: CriticLearner, networks: Mapping[int, FlatNetworks]) -> None:
        """`networks` are by the `id` of their modules."""
        self._networks = networks
        followed: list[tuple[nn.Module, nn.Module]] = [(learner.target_q, learner.q)]
        if learner.target_policy is not None:
            followed.append((learner.target_policy.actor, learner.policy.actor))
        self._followed = [(networks[id(old)].vectors, networks[id(new)].vectors) for old, new in followed]

    def act(self, policy: Policy, features: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self._networks[id(policy.actor)](features)[0]
        if is_known_head(policy.head):
            return chosen(policy.head, outputs, noise)
        return policy.head.rsample(policy.distribution_of(outputs, mask), noise)

    def values(self, networks: QNetworks, inputs: Tensor) -> Tensor:
        return self._networks[id(networks)](inputs).squeeze(-1)

    def policy_values(self, networks: QNetworks, inputs: Tensor, count: int) -> Tensor:
        return self._networks[id(networks)].first(count)(inputs).squeeze(-1)

    def soft_update(self, tau: float) -> bool:
        for target, newest in self._followed:
            for old, new in zip(target, newest, strict=True):
                old.lerp_(new, tau)
        return True


def fuse_known(algorithm: OffPolicyAlgorithm[Any]) -> bool:
    """Have kernels evaluate the networks of the groups that they know, wherever the tensors lie; whether those are all."""
    if algorithm not in _ALGORITHMS:
        return False
    found = []
    for learner in algorithm.groups.values():
        fused = _evaluation(learner) if isinstance(learner, CriticLearner) else None
        if fused is not None and isinstance(learner, CriticLearner):
            learner.evaluation = fused
        found.append(fused)
    return None not in found


def _evaluation(learner: CriticLearner) -> FusedEvaluation | None:
    policies = [learner.policy, *([] if learner.target_policy is None else [learner.target_policy])]
    optimizers = learner.actor_optimizer, learner.critic_optimizer
    is_known = (
        learner in _LEARNERS
        and learner.evaluation in _EVALUATIONS
        and learner.q in _CRITICS
        and learner.target_q in _CRITICS
        and all(policy in _POLICIES and policy.image_encoder is None for policy in policies)
        and all(optimizer in _OPTIMIZERS for optimizer in optimizers)
    )
    if not is_known:
        return None
    targets = [policy.actor for policy in policies[1:]]
    pieces = [
        _learned(learner.policy.actor, [learner.policy.actor], learner.actor_optimizer),
        _learned(learner.q, list(learner.q.critics), learner.critic_optimizer),
        *(_fixed(actor, [actor]) for actor in targets),
        _fixed(learner.target_q, list(learner.target_q.critics)),
    ]
    known = {id(piece[0]): piece[1] for piece in pieces if piece is not None}
    return FusedEvaluation(learner, known) if len(known) == len(pieces) else None


def _shape(mlps: Sequence[nn.Module], *, learns: bool) -> MLPShape | None:
    """The one shape of several networks."""
    shapes = {mlp_shape(mlp, learns=learns) for mlp in mlps}
    return shapes.pop() if len(shapes) == 1 else None


def _learned(module: nn.Module, mlps: Sequence[nn.Module], adam: FlatAdam) -> tuple[nn.Module, FlatNetworks] | None:
    """Networks that an optimiser steps, and nothing else besides: they lie in its vector from beginning to end."""
    shape, parameters = _shape(mlps, learns=True), [parameter for mlp in mlps for parameter in mlp.parameters()]
    if shape is None or not _are_all(parameters, adam.vector):
        return None
    vectors, gradients = (whole.split(shape.num_parameters) for whole in (adam.vector, adam.gradient))  # type: ignore[no-untyped-call]
    return module, FlatNetworks(shape, vectors, gradients, tuple(parameters))


def _are_all(parameters: Sequence[Tensor], vector: Tensor) -> bool:
    """Whether a vector consists of these parameters, in their order."""
    place, size = vector.data_ptr(), vector.element_size()
    for parameter in parameters:
        if parameter.data_ptr() != place:
            return False
        place += parameter.numel() * size
    return place == vector.data_ptr() + vector.numel() * size


def _fixed(module: nn.Module, mlps: Sequence[nn.Module]) -> tuple[nn.Module, FlatNetworks] | None:
    """Target networks."""
    shape = _shape(mlps, learns=False)
    return None if shape is None else (module, FlatNetworks(shape, tuple(_flattened(mlp) for mlp in mlps)))


def _flattened(mlp: nn.Module) -> Tensor:
    """One vector of which a network's parameters become views."""
    parameters = list(mlp.parameters())
    vector = torch.cat([p.detach().reshape(-1) for p in parameters])
    sizes = [p.numel() for p in parameters]
    for parameter, piece in zip(parameters, vector.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        parameter.data = piece.view_as(parameter)
    return vector
