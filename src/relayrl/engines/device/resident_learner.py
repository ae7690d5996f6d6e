"""Learns from rollouts on their device: values, advantages, normalisation, passes over minibatches, all without the host.

What is computed is what `OnPolicyAlgorithm` computes of a rollout in which every lane acts on every row; minibatches are drawn
by the device's own generator. Metrics stay on the device until they are fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.updates.device_update import POLICY_METRICS, VALUE_METRICS, DeviceBatch, DeviceUpdate

if TYPE_CHECKING:
    from relayrl.algorithms.ppo import PPO
    from relayrl.engines.device.resident_rollout import ResidentRollout
    from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer

NAMES = ("value/explained_variance", "value/mean")


@dataclass(frozen=True, slots=True)
class Seen:
    """What critics see `[…, C]`: of every row, after the last one, and after truncations (one more slot is void)."""

    rows: Tensor  # [T, L, C]
    last: Tensor  # [L, C]
    final: Tensor  # [S, L, C]

    def normalized(self, moments: RunningNormalizer | None) -> Seen:
        """The same as `moments` scale it, where there are any."""
        return self if moments is None else Seen(moments(self.rows), moments(self.last), moments(self.final))


class ResidentLearner:
    """One group's PPO on a device."""

    def __init__(
        self,
        algorithm: PPO,
        update: DeviceUpdate,
        generator: torch.Generator,
        encoders: Mapping[str, ObservationEncoder] | None = None,
    ) -> None:
        """With `encoders` of all groups, the critic sees all agents."""
        self.algorithm, self.update, self._encoders = algorithm, update, encoders
        self._generator, self._params = generator, algorithm.params
        self._device = update.pi_adam.lr.device
        # Sums over updates, steps of the policy and steps of the value, with the number of each behind them.
        widths = len(NAMES) + 1, len(POLICY_METRICS) + 1, len(VALUE_METRICS) + 1
        self._sums = torch.zeros(sum(widths), device=self._device)
        self._of_updates, self._of_policy, self._of_value = self._sums.split(widths)  # type: ignore[no-untyped-call]

    def take_params(self, progress: float) -> bool:
        """Go by the hyper-parameters as they are, when `progress` in [0, 1] of the run is over; whether others than rates are
        new, which are part of a captured graph."""
        params = self.algorithm.params
        factor = params.lr_schedule.factor(progress)
        self.update.pi_adam.lr.fill_(params.pi_lr * factor)
        self.update.vf_adam.lr.fill_(params.vf_lr * factor)
        if params is self._params:
            return False
        rates = {"pi_lr": params.pi_lr, "vf_lr": params.vf_lr}
        is_new = self._params.model_copy(update=rates) != params
        self._params, self.update.objective = params, self.algorithm.minimised()
        return is_new

    def pause(self) -> None:
        """Let the algorithm's state be what it is on the device."""
        self.update.pi_adam.pull()
        self.update.vf_adam.pull()

    def resume(self) -> None:
        """Go on from the algorithm's state."""
        self.update.pi_adam.push()
        self.update.vf_adam.push()

    def learn(self, name: str, rollouts: Mapping[str, ResidentRollout]) -> None:
        """Learn from a group's rollout, beside which a central critic sees the others."""
        rollout, update = rollouts[name], self.update
        features = update.features(rollout.obs.flatten(0, 1))
        raw = None
        if self._encoders is not None:
            raw = _all_agents(name, rollouts, self._encoders, update)
            seen = raw.normalized(self.algorithm.policy.critic_normalizer)
        else:
            obs = rollout.last_obs, rollout.final_obs(update).flatten(0, 1)
            last, final = (update.features(own) for own in obs)
            rows = features.view(*rollout.reward.shape, *features.shape[1:])
            seen = Seen(rows, last, final.view(rollout.num_slots, rollout.num_lanes, *final.shape[1:]))
        values, flags, params = (
            self._values(rollout, seen),
            (rollout.terminated, rollout.truncated),
            self.algorithm.params,
        )
        advantage = update.advantages(rollout.reward, values, flags, params.gamma, params.lam)
        batch = self._batch(rollout, features, seen, values[0], advantage)
        self._normalize(batch)
        self._pass_over(batch)
        self._update_normalizers(rollout, raw)

    def _values(self, rollout: ResidentRollout, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """[T, L] of every row, [L] after the last one, and [S, L] after truncations."""
        values = self.update.values
        value = values(seen.rows.flatten(0, 1)).view(rollout.reward.shape)
        return value, values(seen.last), values(seen.final.flatten(0, 1)).view(rollout.num_slots, -1)

    def _batch(
        self, rollout: ResidentRollout, features: Tensor, seen: Seen, value: Tensor, advantage: Tensor
    ) -> DeviceBatch:
        """What minibatches are taken of; `features` [T · L, …] are what the actor sees."""
        return DeviceBatch(
            features,
            seen.rows.flatten(0, 1),
            rollout.action.flatten(0, 1),
            None,
            rollout.logp.flatten(),
            advantage.flatten(),
            (advantage + value).flatten(),
            value.flatten(),
        )

    def _normalize(self, batch: DeviceBatch) -> None:
        params, moments = self.algorithm.params, self.algorithm.policy.return_normalizer
        columns = batch.advantage, batch.old_value, self._of_updates
        if params.normalize_advantages:
            batch.advantage = self.update.normalized(*columns)
        else:
            self.update.add_statistics(*columns)
        if params.normalize_returns:
            # What the critic's output was: under the new moments it would seem to have moved before its first step.
            batch.old_value = (batch.old_value - moments.shift) * moments.scale
            moments.update(batch.target.reshape(-1, 1))
            batch.target = (batch.target - moments.shift) * moments.scale

    def _pass_over(self, batch: DeviceBatch) -> None:
        params, num_rows = self.algorithm.params, len(batch)
        minibatch = -(-num_rows // params.num_minibatches)
        keep, sums = torch.ones(1, device=self._device), (self._of_policy, self._of_value)
        for i in range(max(params.train_pi_iters, params.train_vf_iters)):
            trains = {"trains_pi": i < params.train_pi_iters, "trains_vf": i < params.train_vf_iters}
            order = None
            if minibatch < num_rows:
                order = self.update.shuffled(num_rows, self._generator)
            for start in range(0, num_rows, minibatch):
                where = None if order is None else order[start : start + minibatch]
                self.update.take_step(batch, where, keep, sums, **trains)

    def _update_normalizers(self, rollout: ResidentRollout, raw: Seen | None) -> None:
        """Last of all: acting, log-probabilities and training of one rollout must see the same normalisation."""
        policy = self.algorithm.policy
        if policy.normalizer is not None:
            policy.normalizer.update(policy.encoder(rollout.obs.flatten(0, 1)))
        if policy.critic_normalizer is not None and raw is not None:
            policy.critic_normalizer.update(raw.rows.flatten(0, 1))

    def fetch_metrics(self) -> dict[str, float]:
        """Means since the last call, over updates or gradient steps. Waits for the device; a loss that is not finite raises."""
        sums = iter(self._sums.tolist())
        self._sums.zero_()
        metrics: dict[str, float] = {}
        counts = []
        for names in (NAMES, POLICY_METRICS, VALUE_METRICS):
            totals, count = [next(sums) for _ in names], next(sums)
            metrics |= {name: total / count for name, total in zip(names, totals, strict=True)} if count else {}
            counts.append(count)
        updates, steps_pi, steps_vf = counts
        if not updates:
            return {}
        require_finite(metrics.get("policy/loss", 0.0), "policy", "pi_lr")
        require_finite(metrics.get("value/loss", 0.0), "value", "vf_lr")
        return metrics | {
            "policy/gradient_steps": steps_pi / updates,
            "value/gradient_steps": steps_vf / updates,
            "policy/learning_rate": self.update.pi_adam.lr.item(),
            "value/learning_rate": self.update.vf_adam.lr.item(),
        }


def _all_agents(
    name: str,
    rollouts: Mapping[str, ResidentRollout],
    encoders: Mapping[str, ObservationEncoder],
    update: DeviceUpdate,
) -> Seen:
    """All agents side by side, with the number of the agent who is asked for, as `joint_observations` has it."""
    num_agents = rollouts[name].num_agents

    def joint(seen: Callable[[ResidentRollout], Tensor]) -> Tensor:
        parts = []
        for other, rollout in rollouts.items():
            features = encoders[other](seen(rollout))
            parts.append(features.reshape(*features.shape[:-2], rollout.num_envs, -1))
        everybody = torch.cat(parts, -1).unsqueeze(-2)
        everybody = everybody.expand(*everybody.shape[:-2], num_agents, -1)
        number = torch.eye(num_agents, device=everybody.device).expand(*everybody.shape[:-1], -1)
        return torch.cat([everybody, number], -1).flatten(-3, -2)

    return Seen(joint(lambda own: own.obs), joint(lambda own: own.last_obs), joint(lambda own: own.final_obs(update)))
