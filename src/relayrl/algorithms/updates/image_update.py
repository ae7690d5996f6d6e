"""The update of policies whose actor and critic see images through one encoder.

Rows are kept as they were observed: images stay bytes until a minibatch of them is encoded, once for both networks. With
h = encoder(obs), a gradient step is

    g_π = ∂L_π/∂h,   g_V = ∂L_V/∂h,   ∇encoder = (g_π + value_coef · g_V) ∂h/∂θ

in one pass back through the encoder, which the policy's optimiser steps. Where the value learns alone, because the policy's
passes are over or its KL limit is exceeded, it moves the critic's own layers only: the encoder is the policy's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.critics.joint_observations import CentralInputs
from relayrl.algorithms.losses import Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.recurrent_update import RecurrentEvaluation, RecurrentUpdate
from relayrl.algorithms.updates.torch_update import Batch, Evaluation, StepMetrics, TorchUpdate, flat_rows
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Tree, leaves, map_tree
from relayrl.models.policy import ActorCritic
from relayrl.models.recurrent_policy import RecurrentActorCritic

PIECE_ROWS = 256
"""Rows that are encoded at a time where no gradient is wanted: what a layer gives of them should stay in the cache."""


@dataclass(frozen=True, slots=True)
class ObservationRows:
    """[M, …] observations as they are."""

    obs: Tree

    def __len__(self) -> int:
        return len(next(leaves(self.obs))[1])

    def __getitem__(self, where: Any) -> ObservationRows:
        return ObservationRows(map_tree(lambda leaf: leaf[where], self.obs))

    def pieces(self) -> Iterable[ObservationRows]:
        """The rows, some at a time."""
        return [self[i : i + PIECE_ROWS] for i in range(0, max(len(self), 1), PIECE_ROWS)]

    def laid_out(self) -> ObservationRows:
        """Themselves: they share nothing."""
        return self

    @staticmethod
    def joined(several: Sequence[ObservationRows]) -> ObservationRows:
        """The rows of all, one after the other."""
        return ObservationRows(map_tree(lambda *parts: np.concatenate(parts), *(rows.obs for rows in several)))


class EncodedStep:
    """The rows of one gradient step, encoded once for both networks."""

    def __init__(self, *, trains_encoder: bool) -> None:
        self._trains_encoder = trains_encoder
        self._embedding: Tensor | None = None
        self._seen: Tensor | None = None

    def seen(self, encode: Callable[[], Tensor]) -> Tensor:
        """[M, E] what the networks see, from where no gradient goes further back."""
        if self._seen is None:
            with torch.set_grad_enabled(self._trains_encoder):
                self._embedding = encode()
            self._seen = self._embedding.detach().requires_grad_(self._embedding.requires_grad)
        return self._seen

    def take_gradient(self) -> Tensor | float:
        """∂L/∂h of the loss that was differentiated last, 0 where there was none."""
        if self._seen is None or self._seen.grad is None:
            return 0.0
        gradient, self._seen.grad = self._seen.grad, None
        return gradient

    def differentiate_encoder(self, gradient: Tensor | float) -> None:
        """Go on from ∂L/∂h into the encoder's parameters."""
        if self._embedding is not None and isinstance(gradient, Tensor):
            # The same numbers as `backward(gradient)`, which imports sympy: half a second before the first step.
            (self._embedding * gradient).sum().backward()  # type: ignore[no-untyped-call]


class SharedEncoderUpdate(TorchUpdate):
    """For policies without a memory."""

    _step: EncodedStep | None = None

    def features(self, obs: Any) -> ObservationRows:
        return ObservationRows(obs)

    def tensor(self, array: Any) -> Any:
        if not isinstance(array, ObservationRows):
            return super().tensor(array)
        if self._step is not None:
            return self._step.seen(lambda: self._encode(array))
        return torch.cat([self._encode(piece) for piece in array.pieces()])

    def _encode(self, rows: ObservationRows) -> Tensor:
        return self.policy.features(map_tree(super().tensor, rows.obs))

    def evaluate(self, rollout: Rollout, central: CentralInputs | None) -> Evaluation:
        """Values that the policy gave when it acted are not computed again, unless it left some out."""
        if rollout.value is None or rollout.logp is None or not np.isfinite(rollout.value).all():
            return super().evaluate(rollout, central)
        features, following = self.features(flat_rows(rollout.obs)), self.features(rollout.successors.obs)
        return Evaluation(features, None, rollout.value, self.value(following), flat_rows(rollout.logp))  # type: ignore[arg-type]

    @torch.no_grad()
    def log_prob(self, features: Any, mask: Array | None, action: Array) -> Array:
        found, first = [], 0
        for piece in features.pieces():
            where = slice(first, first := first + len(piece))
            found.append(super().log_prob(piece, None if mask is None else mask[where], action[where]))
        return np.concatenate(found)

    def gradients(self, rows: Batch, trains_pi: bool, trains_vf: bool) -> tuple[StepMetrics | None, StepMetrics | None]:
        self._step = step = EncodedStep(trains_encoder=trains_pi)
        try:
            pi_metrics = self.policy_gradient(rows) if trains_pi else None
            from_policy = step.take_gradient()
            vf_metrics = self.value_gradient(rows) if trains_vf else None
            if pi_metrics is not None:
                step.differentiate_encoder(from_policy + self.objective.value_coef * step.take_gradient())
        finally:
            self._step = None
        return pi_metrics, vf_metrics


class RecurrentSharedEncoderUpdate(SharedEncoderUpdate, RecurrentUpdate):
    """For policies with a memory each of actor and critic, behind the encoder."""

    def evaluate(self, rollout: Rollout, central: CentralInputs | None) -> RecurrentEvaluation:
        return RecurrentUpdate.evaluate(self, rollout, central)


def reference_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> TorchUpdate:
    """The update of any policy."""
    return reference_update_of(policy)(policy, objective, pi_optimizer, vf_optimizer)


def reference_update_of(policy: ActorCritic) -> type[TorchUpdate]:
    """What updates a policy, with a memory or a shared encoder or without."""
    shares = policy.image_encoder is not None
    if isinstance(policy, RecurrentActorCritic):
        return RecurrentSharedEncoderUpdate if shares else RecurrentUpdate
    return SharedEncoderUpdate if shares else TorchUpdate
