"""The update of recurrent policies: back through time, over sequences of rows that begin with the memory that acted.

1. A rollout's `memory` column is what each lane remembered before each row, so values and log-probabilities of all rows are
   one batched step. Where nobody recorded it, and for a central critic, which nobody runs while acting, the memory is found by
   going through the rows in order, from zeros or, where lanes go on from the rollout before, from where they stopped.
2. The value of what followed a lane's last row is evaluated with the memory after that row.
3. Minibatches are whole sequences (`sequences`); each is unrolled in one fused call from its first row's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.critics.joint_observations import CentralInputs
from relayrl.algorithms.losses import Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.batch_columns import on_device, row_index, some_rows
from relayrl.algorithms.updates.sequences import Sequences, cut, pack
from relayrl.algorithms.updates.torch_update import (
    Batch,
    Estimates,
    Evaluation,
    StepMetrics,
    TorchUpdate,
    as_array,
    flat_rows,
    joined_rows,
    laid_out,
)
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.errors import ConfigError
from relayrl.models.compute_device import CPU, moved
from relayrl.models.networks.recurrent_network import RecurrentNetwork, memory_of
from relayrl.models.networks.shared_rows import SharedRows
from relayrl.models.recurrent_policy import RecurrentActorCritic


@dataclass(frozen=True, slots=True)
class RecurrentEvaluation(Evaluation):
    """Also what was remembered before each row: `[M, …]` of the actor and of the critic."""

    actor_memory: Array
    critic_memory: Array


@dataclass(slots=True, kw_only=True)
class SequenceBatch(Batch):
    """Rows in sequences, each with what was remembered before its first row.

    Minibatches are made of whole sequences: `len` counts them, and `rows` selects them.
    """

    sequences: Sequences
    actor_memory: Array
    critic_memory: Array

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_rows(self) -> int:
        return int(self.sequences.length.sum())

    def rows(self, where: Any) -> SequenceBatch:
        memory = {name: some_rows(getattr(self, name), where) for name in ("actor_memory", "critic_memory")}
        return replace(self, sequences=self.sequences.some(where), **memory)

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        own = [part for part in parts if isinstance(part, SequenceBatch)]
        rows = Batch.joined([Batch(*part.columns()) for part in own])  # type: ignore[arg-type]
        offsets = np.cumsum([0, *(len(part.advantage) for part in own[:-1])])
        first = [part.sequences.first + offset for part, offset in zip(own, offsets, strict=True)]
        sequences = Sequences(np.concatenate(first), np.concatenate([part.sequences.length for part in own]))
        actor_memory = joined_rows([part.actor_memory for part in own])
        critic_memory = joined_rows([part.critic_memory for part in own])
        return _in_sequences(rows, sequences, actor_memory, critic_memory)

    def packed(self, device: torch.device | None = None) -> PackedBatch:
        """The rows in the order in which networks are unrolled over them, with memories on `device`."""
        packing = pack(self.sequences)
        both = self.actor_memory, self.critic_memory
        memory = (on_device(some_rows(part, packing.order), device or CPU) for part in both)
        rows = (
            row_index(packing.rows, device)
            if device is not None and not isinstance(self.logp, np.ndarray)
            else packing.rows
        )
        return PackedBatch(Batch.rows(self, rows), torch.from_numpy(packing.batch_sizes), *memory)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Packed rows of sequences, as `MemoryCell.unroll` takes them, with what was remembered before each sequence."""

    rows: Batch
    batch_sizes: Tensor
    actor_memory: Tensor
    critic_memory: Tensor


class RecurrentUpdate(TorchUpdate):
    """For policies with a memory."""

    policy: RecurrentActorCritic

    def __init__(
        self, policy: RecurrentActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
    ) -> None:
        super().__init__(policy, objective, pi_optimizer, vf_optimizer)
        self._sequence_length = memory_of(policy.network).sequence_length
        self._packed: tuple[Batch, PackedBatch] | None = None
        self._central = CarriedMemory(policy.critic)

    @torch.no_grad()
    def evaluate(self, rollout: Rollout, central: CentralInputs | None) -> RecurrentEvaluation:
        policy, (T, L) = self.policy, rollout.reward.shape
        seen = self.features(flat_rows(rollout.obs))
        features = self.tensor(seen)
        actor_memory, critic_memory = self._memory(rollout, features)
        if central is None:
            hidden = policy.critic.hidden(features)
            hidden_next = policy.critic.hidden(self.tensor(self.features(rollout.successors.obs)))
        else:
            hidden, hidden_next = (self._hidden(rows) for rows in (central.rows, central.successors))
            critic_memory = self._central.before_rows(rollout, hidden)
        value, after = policy.critic.step_hidden(hidden, critic_memory)
        value_next = self._successor_values(rollout, hidden_next, critic_memory, after)
        if rollout.logp is None:
            outputs, _ = policy.actor.step(features, actor_memory)
            parameters = policy.distribution_of(outputs, self.tensor(flat_rows(rollout.action_mask)))
            logp = as_array(policy.head.log_prob(parameters, self.tensor(flat_rows(rollout.action))))
        else:
            logp = flat_rows(rollout.logp)
        return RecurrentEvaluation(
            features=seen,
            central=None if central is None else central.rows,
            value=self._in_units_of_reward(value).reshape(T, L),
            successor_value=self._in_units_of_reward(value_next),
            logp=logp,
            actor_memory=self.kept(actor_memory),
            critic_memory=self.kept(critic_memory),
        )

    def _memory(self, rollout: Rollout, features: Tensor) -> tuple[Tensor, Tensor]:
        """[M, …] what actor and critic remembered before each row, as recorded or, from zeros on, found again."""
        policy, recorded = self.policy, rollout.memory
        if recorded is None:
            networks = [policy.actor] if policy.is_central else [policy.actor, policy.critic]
            found = [remembered(network, rollout, network.hidden(features))[0] for network in networks]
            return policy.split(torch.cat(found, -1))
        if not isinstance(recorded, np.ndarray) or recorded.shape[2:] != (policy.memory_width,):
            raise ConfigError(
                f"the recorded memory is not one of {policy.memory_width} numbers a step, as this policy has; leave the "
                "memory column out, and it is computed from the observations"
            )
        return policy.split(self.tensor(flat_rows(recorded)))

    def _successor_values(self, rollout: Rollout, hidden_next: Tensor, before: Tensor, after: Tensor) -> Tensor:
        places = rollout.successors.step * rollout.num_lanes + rollout.successors.lane
        acted = self.tensor(rollout.valid.reshape(-1)[places])[:, None]
        rows = row_index(places, self._device)
        return self.policy.critic.step_hidden(hidden_next, torch.where(acted, after[rows], before[rows]))[0]

    def _in_units_of_reward(self, value: Tensor) -> Array:
        return as_array(self.policy.in_units_of_reward(value.squeeze(-1)))

    @torch.no_grad()
    def current_logp(self, rollout: Rollout, evaluation: Evaluation) -> Array:
        """Unrolled over sequences: a recorded memory is what an older policy remembered, and only the first of each is used."""
        nothing = Estimates(evaluation.logp, evaluation.value, evaluation.value)
        rows, batch = self._sequences(rollout, evaluation, nothing, rollout.valid)
        logp = evaluation.logp.copy()
        if len(batch):
            packed = batch.packed(self._device)
            logp[rows[pack(batch.sequences).rows]] = as_array(
                self.policy.head.log_prob(self._distribution(packed), self.tensor(packed.rows.action))
            )
        return logp

    def batch(self, rollout: Rollout, evaluation: Evaluation, learned: Estimates, usable: Array) -> Batch:
        return self._sequences(rollout, evaluation, learned, usable)[1]

    def _sequences(
        self, rollout: Rollout, evaluation: Evaluation, learned: Estimates, usable: Array
    ) -> tuple[Array, SequenceBatch]:
        """The usable rows, as indices of `[M]`, and their sequences."""
        assert isinstance(evaluation, RecurrentEvaluation)
        rows, sequences = cut(usable, rollout.ended, self._sequence_length)
        first = rows[sequences.first]
        batch = Batch.of(rollout, evaluation, learned).rows(rows)
        memory = (some_rows(part, first) for part in (evaluation.actor_memory, evaluation.critic_memory))
        return rows, _in_sequences(batch, sequences, *memory)

    def policy_gradient(self, rows: Batch) -> StepMetrics | None:
        packed = self._pack(rows)
        return self.differentiate_policy(self._distribution(packed), packed.rows)

    def _distribution(self, packed: PackedBatch) -> Tensor:
        """[M, P] the distributions' parameters of packed rows."""
        features, mask = self.tensor(packed.rows.features), self.tensor(packed.rows.mask)
        outputs = self.policy.actor.unroll(features, packed.batch_sizes, packed.actor_memory)
        return self.policy.distribution_of(outputs, mask)

    def value_gradient(self, rows: Batch) -> StepMetrics:
        packed = self._pack(rows)
        seen = self.tensor(laid_out(packed.rows.critic_features))
        outputs = self.policy.critic.unroll(seen, packed.batch_sizes, packed.critic_memory)
        return self.differentiate_value(outputs.squeeze(-1), packed.rows)

    def _pack(self, rows: Batch) -> PackedBatch:
        """Packed once for both networks."""
        if self._packed is None or self._packed[0] is not rows:
            assert isinstance(rows, SequenceBatch)
            self._packed = (rows, rows.packed(self._device))
        return self._packed[1]

    def _hidden(self, rows: SharedRows) -> Tensor:
        """[M, H] what the critic's cell sees of rows."""
        return torch.cat([self.policy.critic.hidden(self.tensor(piece)) for piece in rows.pieces()])

    def state_dict(self) -> dict[str, Any]:
        return self._central.state_dict() if self.policy.is_central else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.policy.is_central:
            self._central.load_state_dict(state)


class CarriedMemory:
    """What a central critic remembers of lanes from one rollout to the next."""

    def __init__(self, critic: RecurrentNetwork) -> None:
        self._critic = critic
        self._lanes: object = None
        self._memory = torch.zeros(0, critic.memory_width)

    def before_rows(self, rollout: Rollout, hidden: Tensor) -> Tensor:
        """[M, …] what is remembered before each row of a rollout; lanes that go on begin with what they had."""
        header = rollout.header
        lanes = (header.env_ids, header.agent_ids)
        first = hidden.new_zeros(rollout.num_lanes, self._critic.memory_width)
        # A loaded state does not say whose memory it is: lanes have the same order.
        if self._lanes in (None, lanes) and len(self._memory) == rollout.num_lanes:
            goes_on = moved(rollout.first_step > 0, hidden.device)[:, None]
            first = torch.where(goes_on, self._memory.to(hidden.device), first)
        before, self._memory = remembered(self._critic, rollout, hidden, first)
        self._lanes = lanes
        return before

    def state_dict(self) -> dict[str, Any]:
        return {"carried_memory": self._memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._lanes, self._memory = None, state["carried_memory"].clone()


@torch.no_grad()
def remembered(
    network: RecurrentNetwork, rollout: Rollout, hidden: Tensor, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """([M, …], [L, …]) what a network remembers before each row of a rollout, `hidden` [M, H] of them, and after the last."""
    T, L = rollout.reward.shape
    hidden = hidden.reshape(T, L, -1)
    valid, ended = (moved(flags, hidden.device)[..., None] for flags in (rollout.valid, rollout.ended))
    memory = hidden.new_zeros(L, network.memory_width) if first is None else first
    before = hidden.new_empty(T, L, network.memory_width)
    nothing = hidden.new_zeros(())
    for t in range(T):
        before[t] = memory
        memory = torch.where(valid[t], network.cell.step(hidden[t], memory)[1], memory)
        memory = torch.where(ended[t], nothing, memory)
    return before.reshape(T * L, -1), memory


def _in_sequences(rows: Batch, sequences: Sequences, actor_memory: Array, critic_memory: Array) -> SequenceBatch:
    memory = {"actor_memory": actor_memory, "critic_memory": critic_memory}
    return SequenceBatch(*rows.columns(), sequences=sequences, **memory)  # type: ignore[arg-type]
