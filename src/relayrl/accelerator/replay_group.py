"""One group's networks as compiled kernels run and differentiate them, on the learner's own parameters and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.accelerator.compiled_mlp import CompiledTape, CompiledTapes, has_kernels
from relayrl.accelerator.replay_choices import Choice, Chooser, chooser_of
from relayrl.algorithms.updates.replay_actor_critic import CriticLearner
from relayrl.algorithms.updates.replay_batch import GroupBatch
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.row_rules import present
from relayrl.data.trees import Array, map_tree
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, is_plain
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer
from relayrl.models.networks.q_networks import QNetworks
from relayrl.models.networks.shared_rows import SharedRows
from relayrl.models.policy import Policy

_LEARNERS, _POLICIES, _CRITICS = BuiltIns(CriticLearner), BuiltIns(Policy), BuiltIns(QNetworks)
_ENCODERS, _NORMALIZERS = BuiltIns(ObservationEncoder), BuiltIns(RunningNormalizer)


class AcceleratedGroup:
    """The twin of a `CriticLearner`."""

    def __init__(self, learner: CriticLearner, chooser: Chooser, num_policy_critics: int) -> None:
        self.learner, self._chooser = learner, chooser
        self._targets = [(_flattened(old).numpy(), _lying_flat(new).numpy()) for old, new in learner.targets()]
        critics = _mlps(learner.q)
        self.critics = CompiledTapes(critics)
        few = num_policy_critics < len(critics)
        self.policy_critics = CompiledTapes(critics[:num_policy_critics]) if few else self.critics
        self._target_critics = CompiledTapes(_mlps(learner.target_q), learns=False)
        self.actor = CompiledTape(_mlp(learner.policy.actor))
        target = learner.target_policy
        self._target_actor = self.actor if target is None else CompiledTape(_mlp(target.actor), learns=False)

    @staticmethod
    def of(learner: CriticLearner, num_policy_critics: int) -> AcceleratedGroup | None:
        """The twin; None where a part is not built in, not unchanged or not on the CPU, or where there are no kernels."""
        chooser = chooser_of(learner.policy.head)
        policies = [learner.policy, *([] if learner.target_policy is None else [learner.target_policy])]
        learned = [learner.policy.actor, *learner.q.critics]
        networks = [*learned, *learner.target_q.critics, *(policy.actor for policy in policies)]
        is_known = (
            chooser is not None
            and learner in _LEARNERS
            and learner.q in _CRITICS
            and learner.target_q in _CRITICS
            and all(_is_plain_policy(policy) for policy in policies)
            and all(is_plain(network) for network in networks)
            and all(parameter.requires_grad for network in learned for parameter in network.parameters())
            and has_kernels(*map(_mlp, networks))
        )
        return AcceleratedGroup(learner, chooser, num_policy_critics) if is_known and chooser is not None else None

    def batch(self, rows: Any) -> GroupBatch[Array]:
        """`replay_batch.group_batch` in NumPy."""
        policy, shape = self.learner.policy, rows.valid.shape

        def features(obs: Any) -> Array:
            return policy.features_numpy(map_tree(as_rows, obs)).reshape(*shape, -1)

        return GroupBatch(
            features=present(features(rows.obs), rows.valid),
            action=present(policy.head.encode_action(rows.action), rows.valid),
            reward=rows.reward,
            next_features=present(features(rows.next_obs), rows.valid | rows.next_valid),
            discount=rows.discount,
            valid=rows.valid,
            next_valid=rows.next_valid,
            mask=rows.mask,
            next_mask=rows.next_mask,
            share=np.asarray(rows.valid / np.float32(max(int(np.count_nonzero(rows.valid)), 1)), np.float32),
        )

    def choose(self, features: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        """What the policy does on rows `[M, N]`, differentiable by its network's outputs."""
        return self._choice(self.actor, features, mask, rng)

    def choose_as_target(self, features: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        """What the target policy does; the policy itself where there is no target."""
        return self._choice(self._target_actor, features, mask, rng)

    def _choice(self, actor: CompiledTape, features: Array, mask: Array | None, rng: np.random.Generator) -> Choice:
        return self._chooser.choose(actor.forward(as_rows(features)), None if mask is None else as_rows(mask), rng)

    def target_min_q(self, inputs: Array | SharedRows) -> Array:
        """[M, N] the smallest value that the target critics give `inputs` [M·N, width]."""
        values = [value[:, 0] for value in self._target_critics.forward(inputs)]
        return np.asarray(np.minimum.reduce(values).reshape(-1, self.learner.num_agents))

    def soft_update(self) -> None:
        """`GroupLearner.soft_update`, each target in one call."""
        compiled = kernels()
        assert compiled is not None
        for own, newest in self._targets:
            compiled.soft_update(own, newest, self.learner.tau, num_threads())


def as_rows(leaf: Array) -> Array:
    """`[M, N, …]` as `[M·N, …]`."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _is_plain_policy(policy: Policy) -> bool:
    normalizer = policy.normalizer
    is_known = policy.encoder in _ENCODERS and (normalizer is None or normalizer in _NORMALIZERS)
    return is_known and policy in _POLICIES and policy.image_encoder is None


def _mlp(network: nn.Module) -> MLP:
    assert isinstance(network, MLP)
    return network


def _mlps(critics: QNetworks) -> list[MLP]:
    return [_mlp(network) for network in critics.critics]


def _flattened(parameters: list[nn.Parameter]) -> Tensor:
    """One vector of which the parameters become views."""
    vector = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = vector[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return vector


def _lying_flat(parameters: list[nn.Parameter]) -> Tensor:
    """The vector of which parameters are views (`FlatAdam`)."""
    size = sum(p.numel() for p in parameters)
    return parameters[0].detach().as_strided((size,), (1,))
