"""Supervised learning of a policy from demonstrated actions: shuffled minibatches of the negative log-likelihood.

    L = −E[log π(a|s)] − c E[H]

This is REINFORCE's loss with advantages of 1, so its updates take the steps: kernels, images and memories are theirs. Which
rows are passed over next depends on the seed and two counters alone, which is what a checkpoint holds besides the optimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.imitation.demonstrated_rows import DemonstratedRows
from relayrl.algorithms.losses import LogLikelihood, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.recurrent_update import RecurrentEvaluation, remembered
from relayrl.algorithms.updates.torch_update import Batch, Estimates, Metrics, PassPlan, TorchUpdate, flat_rows
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.models.compute_device import moved, moved_tree

MakeUpdate = Callable[[Objective], TorchUpdate]
_REPORTED = ("policy/loss", "policy/entropy", "policy/gradient_norm")


def observe(policy: Any, rollout: Rollout) -> None:
    """Take the valid rows of a rollout into the moments that a policy normalises by, if it does."""
    if policy.normalizer is not None and rollout.valid.any():
        device = policy.normalizer.scale.device
        raw = policy.encoder(moved_tree(rollout.obs, device))
        policy.normalizer.update(raw[moved(np.asarray(rollout.valid, bool), device)])


class Rows(ABC):
    """Demonstrations that minibatches are taken of."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, where: Array) -> Batch:
        """Some of them, to be learned from with advantages of 1."""


class PlainRows(Rows):
    """Single steps; observations become features when they are needed, as the policy sees them then."""

    def __init__(self, rows: DemonstratedRows, update: TorchUpdate) -> None:
        self._rows, self._update = rows, update

    def __len__(self) -> int:
        return self._rows.num_rows

    def batch(self, where: Array) -> Batch:
        own = self._rows.rows(where)
        nothing, ones = np.zeros(len(where), np.float32), np.ones(len(where), np.float32)
        return Batch(self._update.features(own.obs), own.action, own.mask, nothing, ones, nothing, nothing)


class SequenceRows(Rows):
    """Whole sequences, for a policy with a memory."""

    def __init__(self, sequences: Batch) -> None:
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def batch(self, where: Array) -> Batch:
        return self._sequences.rows(where)


class Cloner:
    """Trains one policy on the demonstrations that it was given."""

    def __init__(
        self, policy: Any, optimizer: FlatAdam, make_update: MakeUpdate, *, seed: int, entropy_coef: float = 0.0
    ) -> None:
        """`optimizer` is that of the policy's `actor_parameters` in what `make_update` gives; nothing else is stepped."""
        self._policy, self.optimizer, self._seed = policy, optimizer, seed
        self._update = make_update(Objective(LogLikelihood(), entropy_coef))
        self._rollouts: list[Rollout] = []
        self._rows: Rows | None = None
        self._num_epochs, self._num_passed = 0, 0  # whole passes, and rows of the present one
        self._order: tuple[int, Array] | None = None  # of a pass, by its number
        self._no_draws = np.random.default_rng(0)

    def add(self, rollout: Rollout) -> None:
        """Take the valid rows of a rollout as demonstrations."""
        if rollout.valid.any():
            self._rollouts.append(rollout)
            self._rows = None

    @property
    def num_rows(self) -> int:
        """Demonstrated actions."""
        return sum(int(np.count_nonzero(rollout.valid)) for rollout in self._rollouts)

    def require_likelihoods(self) -> None:
        """Raise `ConfigError` where the policy gives actions no likelihood."""
        shape = (1, self._policy.head.num_parameters)
        action = map_tree(lambda leaf: leaf[:1, 0], self._rollouts[0].action)
        self._policy.head.log_prob(torch.zeros(shape), map_tree(torch.from_numpy, action))

    def learn(self, num_steps: int, batch_size: int) -> Metrics:
        """Take `num_steps` gradient steps on `batch_size` rows each, fewer at the end of a pass; gives means of metrics.

        Policies with a memory learn from whole sequences, as many as have at most `batch_size` rows.
        """
        if not self._rollouts or not num_steps:
            return {}
        if self._rows is None:
            self._rows = self._prepared(self._rollouts)
        size = self._minibatch_rows(batch_size)
        rows = self._rows if not self._policy.has_memory else self._prepared(self._rollouts)
        return self._step_on(rows, [self._next(len(rows), size) for _ in range(num_steps)])

    def pass_over(self, rollouts: Sequence[Rollout], batch_size: int) -> Metrics:
        """Learn once from rollouts that are not kept."""
        valid = [rollout for rollout in rollouts if rollout.valid.any()]
        if not valid:
            return {}
        rows, size = self._prepared(valid), self._minibatch_rows(batch_size)
        order = self._order_of(self._num_epochs, len(rows))
        self._num_epochs += 1
        return self._step_on(rows, [order[i : i + size] for i in range(0, len(rows), size)])

    def _prepared(self, rollouts: Sequence[Rollout]) -> Rows:
        """Rows that minibatches are taken of. What a memory holds before a sequence changes with the policy, so that sequences
        are prepared anew each time."""
        if self._policy.has_memory:
            parts = [self._sequences(rollout) for rollout in rollouts]
            return SequenceRows(type(parts[0]).joined(parts))
        return PlainRows(DemonstratedRows.of(rollouts), self._update)

    def _step_on(self, rows: Rows, minibatches: Sequence[Array]) -> Metrics:
        sums = dict.fromkeys(_REPORTED, 0.0)
        for where in minibatches:
            batch = rows.batch(where)
            metrics = self._update.begin(batch, PassPlan(len(batch), 1, 0, len(batch), self._no_draws))()
            for name in _REPORTED:
                sums[name] += metrics[name]
        return {name: total / len(minibatches) for name, total in sums.items()}

    def _minibatch_rows(self, batch_size: int) -> int:
        """Rows of a minibatch or, with a memory, sequences."""
        memory = self._policy.network.memory
        return batch_size if memory is None else max(1, batch_size // memory.sequence_length)

    def _next(self, num_rows: int, size: int) -> Array:
        """Rows of the next minibatch."""
        if self._num_passed >= num_rows:  # another record than that of the state which was loaded
            self._num_epochs, self._num_passed = self._num_epochs + 1, 0
        if self._order is None or self._order[0] != self._num_epochs or len(self._order[1]) != num_rows:
            self._order = (self._num_epochs, self._order_of(self._num_epochs, num_rows))
        rows = self._order[1][self._num_passed : self._num_passed + size]
        self._num_passed += len(rows)
        if self._num_passed >= num_rows:
            self._num_epochs, self._num_passed = self._num_epochs + 1, 0
        return rows

    def _order_of(self, epoch: int, num_rows: int) -> Array:
        return np.random.default_rng([self._seed, epoch]).permutation(num_rows)

    def _sequences(self, rollout: Rollout) -> Batch:
        nothing, ones = np.zeros(rollout.reward.shape, np.float32), np.ones(rollout.reward.shape, np.float32)
        features = self._update.features(flat_rows(rollout.obs))
        memory = self._remembered(rollout, self._update.tensor(features))
        known = (features, None, nothing, np.empty(0, np.float32), nothing.reshape(-1))
        evaluation = RecurrentEvaluation(*known, memory, memory[:, :0])
        return self._update.batch(rollout, evaluation, Estimates(nothing.reshape(-1), ones, nothing), rollout.valid)

    def _remembered(self, rollout: Rollout, features: Tensor) -> Any:
        """[M, …] what the actor remembers before each row."""
        actor = self._policy.actor
        return self._update.kept(remembered(actor, rollout, actor.hidden(features).detach())[0])

    def state_dict(self) -> dict[str, Any]:
        """Where it is in its demonstrations, and the optimiser."""
        counters = {"seed": self._seed, "num_epochs": self._num_epochs, "num_passed": self._num_passed}
        return {**counters, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, with the same demonstrations."""
        self._seed, self._order = state["seed"], None
        self._num_epochs, self._num_passed = state["num_epochs"], state["num_passed"]
        self.optimizer.load_state_dict(state["optimizer"])
