"""MA-POCA (Cohen et al., 2021): PPO whose critic knows the team, and credits who has died with what the team earns later.

    y_t = TD(λ) return of the team, of V(o of all who are there)        (`team_rows`)
    Â_i = y_t − b_i,   b_i = b(o_i, o and a of all others)              (counterfactual baseline, `team_critic`)
    L_V = ½ E[(V − y)²] + ½ · ½ E[(b_i − y)²]                           (`team_update`)

An agent's end does not cut its return, the team's end does. Policies act and are exported as PPO's; the critic serves
training alone. The team of an agent are the agents of its group: those that share its policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.poca.poca_params import POCAParams
from relayrl.algorithms.poca.team_rows import TeamRows, team_rows
from relayrl.algorithms.poca.team_update import TeamBatch, TeamUpdate
from relayrl.algorithms.ppo import PPO
from relayrl.algorithms.updates.batch_columns import on_device, some_rows
from relayrl.algorithms.updates.torch_update import (
    Batch,
    Estimates,
    Evaluation,
    Finish,
    Metrics,
    flat_rows,
    joined_rows,
)
from relayrl.data.trees import Array
from relayrl.models.compute_device import CPU
from relayrl.models.teams.team_policy import TeamActorCritic

if TYPE_CHECKING:
    from relayrl.algorithms.critics.joint_observations import CentralInputs
    from relayrl.data.columns import Rollout
    from relayrl.data.trees import Space
    from relayrl.models.heads.action_head import LikelihoodHead
    from relayrl.models.network_settings import NetworkSettings
    from relayrl.models.networks.input_layout import InputLayout
    from relayrl.models.networks.network_factory import NetworkFactory


@dataclass(slots=True)
class POCABatch(Batch):
    """Rows for the policy, and the steps of their teams for the critic."""

    teams: TeamBatch | None = None

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> POCABatch:
        teams = [part.teams for part in parts if isinstance(part, POCABatch) and part.teams is not None]
        columns = zip(*(team.columns() for team in teams), strict=True)
        return cls(*Batch.joined(parts).columns(), TeamBatch(*(joined_rows(same) for same in columns)))  # type: ignore[arg-type, call-arg]


class POCA(PPO):
    """PPO with counterfactual advantages in a team."""

    needs_aligned_agents = True
    policy: TeamActorCritic
    params: POCAParams

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
    ) -> TeamActorCritic:
        del central
        attention = params.attention_size, params.num_attention_heads
        return TeamActorCritic(observation_space, action_space, network, generator, *attention, kernels, head)

    def advantages(self, rollout: Rollout, value: Array, next_value: Array) -> Array:
        """[T, B] of teams; `value` and `next_value` are theirs."""
        return self._team_advantages(team_rows(rollout), value, next_value)

    def _team_advantages(self, rows: TeamRows, value: Array, next_value: Array) -> Array:
        flags = rows.terminated, rows.truncated, rows.acts
        return self._backend.gae(rows.reward, value, next_value, *flags, gamma=self.params.gamma, lam=self.params.lam)

    def _prepare(self, rollout: Rollout, central: CentralInputs | None, fresh: Array | None = None) -> POCABatch:
        rows = team_rows(rollout)
        features = self._update.features(flat_rows(rollout.obs))
        joint = features.reshape(*rows.present.shape, -1)
        actions = self._encoded_actions(rollout).reshape(*rows.present.shape, -1)
        value, baseline = self._values(joint, actions, rows)
        target = value + self._team_advantages(rows, value, self._next_value(rollout, rows, value))
        advantage = (target[..., None] - baseline).reshape(rollout.reward.shape)
        mask, action = flat_rows(rollout.action_mask), flat_rows(rollout.action)
        logp = self._update.log_prob(features, mask, action) if rollout.logp is None else flat_rows(rollout.logp)
        of_agents = np.repeat(target, rows.present.shape[-1], axis=1)
        evaluation = Evaluation(features, None, baseline.reshape(rollout.reward.shape), np.empty(0), logp)
        usable = self.usable_rows(rollout) if fresh is None else self.usable_rows(rollout) & fresh
        batch = self._update.batch(rollout, evaluation, Estimates(logp, advantage, of_agents), usable)
        learns = usable.reshape(-1, rows.present.shape[-1]).any(-1)
        columns = (joint, actions, rows.present, target, value, baseline)
        teams = TeamBatch(*(flat_rows(column) for column in columns))
        learned = teams if learns.all() else teams.rows(learns)
        return POCABatch(*batch.columns(), learned)  # type: ignore[arg-type, call-arg]

    def _encoded_actions(self, rollout: Rollout) -> Array:
        """[M, A] actions as teammates' entities hold them."""
        return self.policy.action_encoder.encode_numpy(flat_rows(rollout.action)).astype(np.float32)

    @cached_property
    def _critic_update(self) -> TeamUpdate:
        return self._backend.team_update(self.policy.critic, self.critic_optimizer)

    def _values(self, features: Array, actions: Array, rows: TeamRows) -> tuple[Array, Array]:
        """[T, B] values and [T, B, N] baselines, in units of reward."""
        both = self._critic_update.values(*(flat_rows(column) for column in (features, actions, rows.present)))
        value, baseline = (self._in_units_of_reward(number) for number in both)
        return value.reshape(rows.reward.shape), baseline.reshape(rows.present.shape)

    def _next_value(self, rollout: Rollout, rows: TeamRows, value: Array) -> Array:
        """[T, B] the value of what followed each step of a team."""
        next_value = np.concatenate([value[1:], np.zeros_like(value[:1])])
        if not len(rows.next_step):
            return next_value
        successors, num_agents = rollout.successors, rows.present.shape[-1]
        which = np.full((*rows.reward.shape, num_agents), -1)
        which[successors.step, *np.divmod(successors.lane, num_agents)] = np.arange(len(successors))
        found = which[rows.next_step, rows.next_env]
        present = rows.next_present & (found >= 0)
        seen = some_rows(self._update.features(successors.obs), np.maximum(found, 0))
        after = self._critic_update.value(seen, present)
        next_value[rows.next_step, rows.next_env] = np.where(present.any(-1), self._in_units_of_reward(after), 0.0)
        return next_value

    def _in_units_of_reward(self, normalized: Tensor) -> Array:
        return np.asarray(self.policy.in_units_of_reward(normalized).cpu().numpy())

    def _normalize(self, batch: Batch) -> None:
        teams = _teams(batch)
        if self.params.normalize_returns:
            teams.old_value, teams.old_baseline = (
                self._update.normalized_returns(column) for column in (teams.old_value, teams.old_baseline)
            )
        super()._normalize(batch)
        if self.params.normalize_returns:
            teams.target = self._update.normalized_returns(teams.target)

    def _begin_passes(self, batch: Batch, num_steps: int) -> Finish:
        """The policy learns as PPO's does, from shuffled rows of agents; then the critic from shuffled steps of teams."""
        teams, device = _teams(batch), self.critic_optimizer.vector.device
        metrics = self._policy_metrics(batch, num_steps)
        teams = teams if device == CPU else on_device(teams, device)
        plan = self._plan(teams, num_steps, policy_passes=0, value_passes=self._value_passes)
        finish = self._critic_update.begin(teams, plan, self._update.objective)
        return lambda: metrics | finish()

    def _policy_metrics(self, batch: Batch, num_steps: int) -> Metrics:
        plan = self._plan(batch, num_steps, policy_passes=self._policy_passes, value_passes=0)
        own = self._update.begin(batch, plan)()
        return {name: number for name, number in own.items() if name.startswith("policy/")}


def _teams(batch: Batch) -> TeamBatch:
    assert isinstance(batch, POCABatch)
    assert batch.teams is not None
    return batch.teams
