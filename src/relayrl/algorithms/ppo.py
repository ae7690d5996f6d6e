"""Proximal policy optimisation (Schulman et al., 2017), with a separate critic.

One `update` takes the rollouts of one policy version and does, in numbered steps:

1. one batched forward pass for values, successor values and, where the actor did not record them, log-probabilities;
2. generalised advantage estimation, cut by termination only;
3. `train_pi_iters` and `train_vf_iters` passes over the valid rows in `num_minibatches` shuffled minibatches; a pass that
   trains both networks computes both losses in one backward pass; they share no parameters, so neither sees the other;
4. the policy's passes stop when the KL estimate exceeds 1.5 × `target_kl`, before the step that would go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from relayrl.algorithms.losses import clipped_surrogate, clipped_value_loss, kl_estimate, value_loss
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.returns import explained_variance, gae, normalized, with_successor_values
from relayrl.config.settings import Settings
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, index, map_tree
from relayrl.errors import TrainingDivergedError
from relayrl.models.actor_critic import ActorCritic


class Schedule(Enum):
    """How a learning rate moves over a run."""

    CONSTANT = "constant"
    LINEAR = "linear"


class PPOParams(Settings):
    """PPO's hyper-parameters. An iteration is a pass over the data."""

    gamma: float = Field(0.99, ge=0, le=1, description="discount")
    lam: float = Field(0.97, ge=0, le=1, description="GAE's trade of bias for variance")
    clip_ratio: float = Field(0.2, gt=0, description="how far the probability ratio may move")
    pi_lr: float = Field(3e-4, gt=0, description="policy learning rate")
    vf_lr: float = Field(1e-3, gt=0, description="value learning rate")
    train_pi_iters: int = Field(80, ge=1, description="policy passes over the data, at most")
    train_vf_iters: int = Field(80, ge=1, description="value passes over the data")
    target_kl: float | None = Field(0.01, gt=0, description="policy passes stop at 1.5 times this; null: never")
    traj_per_epoch: int = Field(8, ge=1, description="trajectories per update when they arrive one by one")
    num_minibatches: int = Field(1, ge=1, description="minibatches a pass; 1 uses the whole batch at once")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    max_grad_norm: float | None = Field(0.5, gt=0, description="gradient clipping per network; null: none")
    value_clip: float | None = Field(None, gt=0, description="how far the value may move per update; null: freely")
    normalize_advantages: bool = Field(True, description="per update, over all rows")
    normalize_returns: bool = Field(False, description="the critic learns returns scaled by running moments")
    lr_schedule: Schedule = Field(Schedule.CONSTANT, description="constant, or linear to zero over the run")


@dataclass(slots=True)
class _Batch:
    """The valid rows of all rollouts, flattened to one axis M."""

    features: Tensor
    action: Tensor
    mask: Tensor | None
    logp: Tensor
    advantage: Tensor
    target: Tensor
    old_value: Tensor

    def __len__(self) -> int:
        return len(self.advantage)

    def permuted(self, order: Tensor) -> _Batch:
        """All columns in another order: slices of it are minibatches without a copy."""
        mask = None if self.mask is None else self.mask[order]
        columns = (self.logp, self.advantage, self.target, self.old_value)
        return _Batch(self.features[order], self.action[order], mask, *(column[order] for column in columns))

    def slice(self, rows: slice) -> _Batch:
        """A view of consecutive rows."""
        mask = None if self.mask is None else self.mask[rows]
        columns = (self.logp, self.advantage, self.target, self.old_value)
        return _Batch(self.features[rows], self.action[rows], mask, *(column[rows] for column in columns))


class PPO:
    """Trains one `ActorCritic` from rollouts of its own making."""

    def __init__(self, policy: ActorCritic, params: PPOParams, generator: torch.Generator) -> None:
        self.policy, self.params = policy, params
        self._generator = generator
        self._pi_optimizer = FlatAdam(policy.actor_parameters(), params.pi_lr, params.max_grad_norm)
        self._vf_optimizer = FlatAdam(policy.critic_parameters(), params.vf_lr, params.max_grad_norm)

    def update(self, rollouts: list[Rollout], progress: float) -> dict[str, float]:
        """Learn from `rollouts`; `progress` in [0, 1] is the share of the run that is over. Gives metrics."""
        if self.params.lr_schedule is Schedule.LINEAR:
            self._pi_optimizer.set_lr(self.params.pi_lr * (1.0 - progress))
            self._vf_optimizer.set_lr(self.params.vf_lr * (1.0 - progress))
        batch, metrics = self._prepare(rollouts)
        metrics.update(self._train(batch))
        self._update_normalizer(rollouts)
        return metrics

    def _update_normalizer(self, rollouts: list[Rollout]) -> None:
        """Last of all: acting, log-probabilities and training of one rollout must see the same normalisation."""
        if self.policy.normalizer is None:
            return
        for rollout in rollouts:
            raw = self.policy.encoder(map_tree(torch.from_numpy, rollout.obs))
            self.policy.normalizer.update(raw[torch.from_numpy(rollout.valid)])

    @torch.no_grad()
    def _prepare(self, rollouts: list[Rollout]) -> tuple[_Batch, dict[str, float]]:
        parts = [self._prepare_rollout(rollout) for rollout in rollouts]
        batch = parts[0] if len(parts) == 1 else _concatenated(parts)
        value, target = batch.old_value.numpy(), batch.target.numpy()
        metrics = {"value/explained_variance": explained_variance(value, target), "value/mean": float(value.mean())}
        if self.params.normalize_advantages:
            batch.advantage = torch.from_numpy(normalized(batch.advantage.numpy()))
        if self.params.normalize_returns:
            moments = self.policy.return_normalizer
            moments.update(batch.target[:, None])
            batch.target = (batch.target - moments.shift) * moments.scale
            batch.old_value = (batch.old_value - moments.shift) * moments.scale
        return batch, metrics

    def _prepare_rollout(self, rollout: Rollout) -> _Batch:
        policy, params = self.policy, self.params
        features = policy.features(map_tree(torch.from_numpy, rollout.obs))
        value = policy.value(features).numpy()
        successor = policy.features(map_tree(torch.from_numpy, rollout.successors.obs))
        next_value = with_successor_values(value, rollout.successors, policy.value(successor).numpy())
        flags = (rollout.terminated, rollout.truncated, rollout.valid)
        advantage = gae(rollout.reward, value, next_value, *flags, gamma=params.gamma, lam=params.lam)
        mask = None if rollout.action_mask is None else torch.from_numpy(rollout.action_mask)
        action = torch.from_numpy(np.asarray(rollout.action))
        if rollout.logp is None:
            logp = policy.head.log_prob(policy.distribution(features, mask), action)
        else:
            logp = torch.from_numpy(rollout.logp)
        columns = (features, action, mask, logp, torch.from_numpy(advantage), torch.from_numpy(advantage + value))
        return _valid_rows((*columns, torch.from_numpy(value)), rollout.valid)

    def _train(self, batch: _Batch) -> dict[str, float]:
        params = self.params
        sums: dict[str, float] = {}
        num_pi_steps = num_vf_steps = 0
        trains_pi = True
        size = -(-len(batch) // params.num_minibatches)
        for iteration in range(max(params.train_pi_iters, params.train_vf_iters)):
            trains_pi = trains_pi and iteration < params.train_pi_iters
            trains_vf = iteration < params.train_vf_iters
            if not (trains_pi or trains_vf):
                break
            if params.num_minibatches > 1:
                batch = batch.permuted(torch.randperm(len(batch), generator=self._generator))
            for start in range(0, len(batch), size):
                step = self._step(batch.slice(slice(start, start + size)), trains_pi, trains_vf)
                trains_pi = trains_pi and step.pop("policy/stopped", 0.0) == 0.0
                num_pi_steps += "policy/loss" in step
                num_vf_steps += "value/loss" in step
                for name, number in step.items():
                    sums[name] = sums.get(name, 0.0) + number
        counts = {"policy": max(num_pi_steps, 1), "value": max(num_vf_steps, 1)}
        metrics = {name: total / counts[name.split("/")[0]] for name, total in sums.items()}
        return {**metrics, "policy/gradient_steps": float(num_pi_steps), "value/gradient_steps": float(num_vf_steps)}

    def _step(self, rows: _Batch, trains_pi: bool, trains_vf: bool) -> dict[str, float]:
        params = self.params
        metrics: dict[str, float] = {}
        losses = []
        if trains_pi:
            losses.append(self._policy_loss(rows, metrics))
            if params.target_kl is not None and metrics["policy/kl"] > 1.5 * params.target_kl:
                losses, metrics = [], {"policy/stopped": 1.0}
        steps_pi = bool(losses)
        if trains_vf:
            losses.append(self._value_loss(rows, metrics))
        if not losses:
            return metrics
        loss = losses[0] if len(losses) == 1 else losses[0] + losses[1]
        if not torch.isfinite(loss):
            raise TrainingDivergedError(f"PPO's loss became {float(loss)}; lower pi_lr or vf_lr, or check the rewards")
        loss.backward()  # type: ignore[no-untyped-call]
        if steps_pi:
            metrics["policy/gradient_norm"] = self._pi_optimizer.step()
            self._pi_optimizer.zero_grad()
        if trains_vf:
            metrics["value/gradient_norm"] = self._vf_optimizer.step()
            self._vf_optimizer.zero_grad()
        return metrics

    def _policy_loss(self, rows: _Batch, metrics: dict[str, float]) -> Tensor:
        head = self.policy.head
        distribution = self.policy.distribution(rows.features, rows.mask)
        log_ratio = head.log_prob(distribution, rows.action) - rows.logp
        ratio = log_ratio.exp()
        loss = clipped_surrogate(ratio, rows.advantage, self.params.clip_ratio)
        entropy = head.entropy(distribution).mean()
        with torch.no_grad():
            metrics["policy/kl"] = float(kl_estimate(log_ratio, ratio))
            metrics["policy/clip_fraction"] = float(((ratio - 1.0).abs() > self.params.clip_ratio).float().mean())
        metrics["policy/loss"], metrics["policy/entropy"] = float(loss.detach()), float(entropy.detach())
        return loss - self.params.entropy_coef * entropy if self.params.entropy_coef else loss

    def _value_loss(self, rows: _Batch, metrics: dict[str, float]) -> Tensor:
        value = self.policy.normalized_value(rows.features)
        if self.params.value_clip is None:
            loss = value_loss(value, rows.target)
        else:
            loss = clipped_value_loss(value, rows.old_value, rows.target, self.params.value_clip)
        metrics["value/loss"] = float(loss.detach())
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next update, besides the policy itself."""
        optimizers = {"pi": self._pi_optimizer.state_dict(), "vf": self._vf_optimizer.state_dict()}
        return {"optimizers": optimizers, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._pi_optimizer.load_state_dict(state["optimizers"]["pi"])
        self._vf_optimizer.load_state_dict(state["optimizers"]["vf"])
        self._generator.set_state(state["generator"])


def _valid_rows(columns: tuple[Tensor | None, ...], valid: Array) -> _Batch:
    """`[T, L, …]` columns as `[M, …]`, without the rows on which the lane did not act."""
    flat = [None if c is None else c.flatten(0, 1) for c in columns]
    if not valid.all():
        where = torch.from_numpy(valid.reshape(-1))
        flat = [None if c is None else index(c, where) for c in flat]
    return _Batch(*flat)  # type: ignore[arg-type]


def _concatenated(parts: list[_Batch]) -> _Batch:
    mask = None if parts[0].mask is None else torch.cat([p.mask for p in parts if p.mask is not None])
    names = ("logp", "advantage", "target", "old_value")
    columns = (torch.cat([getattr(p, name) for p in parts]) for name in names)
    return _Batch(torch.cat([p.features for p in parts]), torch.cat([p.action for p in parts]), mask, *columns)
