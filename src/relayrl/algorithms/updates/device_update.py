"""The reference of an on-policy update that never leaves its device: tensors in, gradients and metrics as tensors out.

The losses are those of `algorithms.losses`. Nothing here waits for the device, so that an update can be captured in a CUDA
graph: the KL limit is a factor of the steps instead of a branch. The accelerator's twin has the same methods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from relayrl.algorithms.losses import Objective, entropy_bonus, kl_estimate
from relayrl.algorithms.returns import gae
from relayrl.algorithms.updates.device_adam import DeviceAdam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.models.policy import ActorCritic

POLICY_METRICS = ("policy/loss", "policy/kl", "policy/entropy", "policy/clip_fraction", "policy/gradient_norm")
VALUE_METRICS = ("value/loss", "value/gradient_norm")
"""What `take_step` adds up, with the number of steps behind each."""
IMAGES_AT_A_TIME = 8192
"""Images that are valued at once: what the layers give of them takes memory."""


@dataclass(slots=True)
class DeviceBatch:
    """Rows that are trained on, `[M, …]`."""

    features: Tensor
    critic_features: Tensor
    action: Tensor
    mask: Tensor | None
    logp: Tensor
    advantage: Tensor
    target: Tensor
    old_value: Tensor

    def __len__(self) -> int:
        """Of what minibatches consist of."""
        return len(self.advantage)

    def columns(self) -> list[Tensor | None]:
        """All columns, in the order of the fields."""
        own = [self.features, self.critic_features, self.action, self.mask]
        return [*own, self.logp, self.advantage, self.target, self.old_value]

    def rows(self, where: Tensor | None) -> DeviceBatch:
        """Some of the rows; all of them for None."""
        if where is None:
            return self
        taken = {id(column): column[where] for column in self.columns() if column is not None}
        return DeviceBatch(*[taken.get(id(column)) for column in self.columns()])  # type: ignore[arg-type]

    def flat(self) -> DeviceBatch:
        """The rows as losses see them, one after the other."""
        return self


class DeviceUpdate:
    """Decides, values and differentiates by the policy's own functions and autograd."""

    def __init__(
        self, policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
    ) -> None:
        self.policy, self.objective = policy, objective
        self.pi_adam, self.vf_adam = DeviceAdam(pi_optimizer), DeviceAdam(vf_optimizer)

    @torch.no_grad()
    def features(self, obs: Tensor) -> Tensor:
        """[M, F] what a batch holds of observations `[M, …]`."""
        return self.policy.features(obs)

    def encoded(self, features: Tensor) -> Tensor:
        """[M, E] what the networks see of `features`, without a gradient."""
        return features

    @torch.no_grad()
    def act(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probabilities [L] of `features` [L, F], made of `noise` [L, K]."""
        policy = self.policy
        distribution = policy.distribution(features)
        action = policy.head.sample_torch(distribution, noise, policy.constants)
        return action, policy.head.log_prob(distribution, action)

    def act_into(self, obs: Tensor, noise: Tensor, out: tuple[Tensor, Tensor]) -> None:
        """Write the actions and log-probabilities of observations `[L, …]` into rows of a rollout's columns."""
        for column, found in zip(out, self.act(self.features(obs), noise), strict=True):
            column.copy_(found)

    @torch.no_grad()
    def values(self, critic_features: Tensor) -> Tensor:
        """[M] in units of reward."""
        return self.policy.value(critic_features)

    def truncated_rows(self, truncated: Tensor, num_slots: int) -> Tensor:
        """[S, L] the rows on which lanes were truncated, in order; 0 where there are fewer than S."""
        where = torch.where(truncated, _slots(truncated), num_slots)
        number = torch.arange(len(truncated), device=where.device)[:, None].expand_as(where)
        lanes = torch.arange(truncated.shape[1], device=where.device).expand_as(where)
        return where.new_zeros((num_slots + 1, truncated.shape[1])).index_put((where, lanes), number)[:-1]

    def advantages(
        self,
        reward: Tensor,
        values: tuple[Tensor, Tensor, Tensor],
        flags: tuple[Tensor, Tensor],
        gamma: float,
        lam: float,
    ) -> Tensor:
        """[T, L] GAE, where every lane acts on every row. `values` are those of rows [T, L], after the last row [L] and after
        truncations [S, L]; `flags` are `terminated` and `truncated`."""
        value, last, final = values
        following = torch.cat([value[1:], last[None]])
        at_end = final.gather(0, _slots(flags[1]).clamp(max=len(final) - 1))
        next_value, everywhere = torch.where(flags[1], at_end, following), torch.ones_like(flags[0])
        advantage: Tensor = gae(reward, value, next_value, *flags, everywhere, gamma=gamma, lam=lam)
        return advantage

    def normalized(self, advantage: Tensor, value: Tensor, sums: Tensor) -> Tensor:
        """Advantages with mean 0 and deviation 1; adds explained variance, mean value and 1 to `sums`."""
        self.add_statistics(advantage, value, sums)
        centred = advantage - advantage.mean()
        return centred / (centred.square().mean().sqrt() + 1e-8)

    def add_statistics(self, advantage: Tensor, value: Tensor, sums: Tensor) -> None:
        """1 − Var(target − value) / Var(target), as `returns.explained_variance`; the mean value; and 1."""
        variance = (advantage + value).var(correction=0)
        explained = torch.where(variance > 0, 1.0 - advantage.var(correction=0) / variance, torch.zeros_like(variance))
        sums += torch.stack([explained, value.mean(), torch.ones_like(explained)])

    def shuffled(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """[M] the numbers of all rows in a random order."""
        return torch.rand(num_rows, generator=generator, device=generator.device).argsort()

    def gradients(
        self, batch: DeviceBatch, where: Tensor | None, *, trains_pi: bool, trains_vf: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Write the optimisers' gradients of the rows `where`; gives [4] loss, KL, entropy and share of clipped rows of the
        policy, and [1] the critic's loss, of those that are trained."""
        rows = batch.rows(where)
        policy = self._policy_gradient(rows) if trains_pi else None
        return policy, self._value_gradient(rows) if trains_vf else None

    def _policy_gradient(self, rows: DeviceBatch) -> Tensor:
        total, metrics = self._policy_loss(self._distribution(rows.features, rows), rows.flat())
        write_gradient(total, self.policy.actor_parameters(), self.pi_adam.flat.gradient)
        return metrics

    def _distribution(self, seen: Tensor, rows: DeviceBatch) -> Tensor:
        """[M, P] the distributions' parameters of what the actor sees of rows."""
        return self.policy.distribution(seen, rows.mask)

    def _normalized_value(self, seen: Tensor, rows: DeviceBatch) -> Tensor:
        """[M] the critic's outputs of what it sees of rows."""
        del rows
        return self.policy.normalized_value(seen)

    def _policy_loss(self, distribution: Tensor, rows: DeviceBatch) -> tuple[Tensor, Tensor]:
        """What the actor descends, and its metrics [4]."""
        head, objective = self.policy.head, self.objective
        log_ratio = head.log_prob(distribution, rows.action) - rows.logp
        loss, entropy = objective.policy_loss.loss(log_ratio, rows.advantage), head.entropy(distribution)
        fixed, moved = objective.policy_loss.offset(rows.logp, rows.advantage), log_ratio.detach()
        clipped = objective.policy_loss.clip_fraction(moved.exp())
        metrics = [loss.detach() + fixed, kl_estimate(moved), entropy.detach().mean(), clipped]
        return loss + entropy_bonus(entropy, objective.entropy_coef), torch.stack(metrics)

    def _value_gradient(self, rows: DeviceBatch) -> Tensor:
        loss = self._value_loss(rows.critic_features, rows)
        write_gradient(loss, self.policy.critic_parameters(), self.vf_adam.flat.gradient)
        return loss.detach().reshape(1)

    def _value_loss(self, seen: Tensor, rows: DeviceBatch) -> Tensor:
        flat = rows.flat()
        return self.objective.value_loss(self._normalized_value(seen, rows), flat.old_value, flat.target)

    def take_step(
        self,
        batch: DeviceBatch,
        where: Tensor | None,
        keep: Tensor,
        sums: tuple[Tensor, Tensor],
        *,
        trains_pi: bool = True,
        trains_vf: bool = True,
    ) -> None:
        """Differentiate and step the networks that are trained. `keep` [1] becomes 0 where the KL limit is exceeded, and then
        the policy stays as it is. Metrics, and the number of steps, are added to `sums` of the policy and of the value."""
        policy, value = self.gradients(batch, where, trains_pi=trains_pi, trains_vf=trains_vf)
        if policy is not None:
            keep.mul_(policy[1:2] <= self.objective.kl_limit)
            sums[0].add_(torch.cat([policy, self.step_policy(keep), keep]) * keep)
        if value is not None:
            always = torch.ones_like(keep)
            sums[1].add_(torch.cat([value, self.step_value(always), always]))

    def step_policy(self, keep: Tensor) -> Tensor:
        """Step the actor by its gradient where `keep` [1] is 1; gives the gradient's norm [1]."""
        return self.pi_adam.step(keep)

    def step_value(self, keep: Tensor) -> Tensor:
        """The same for the critic."""
        return self.vf_adam.step(keep)


class DeviceImageUpdate(DeviceUpdate):
    """Of policies whose actor and critic see images through one encoder, as `image_update` describes it."""

    def features(self, obs: Tensor) -> Tensor:
        """Observations as they are: bytes, until they are encoded."""
        return obs

    def encode(self, obs: Tensor) -> Tensor:
        """[M, E] what the networks see of observations, with a gradient; the accelerator has a twin of it."""
        return self.policy.features(obs)

    @torch.no_grad()
    def act(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return super().act(self.encode(features), noise)

    @torch.no_grad()
    def encoded(self, features: Tensor) -> Tensor:
        return torch.cat([self.encode(piece) for piece in _pieces(features)])

    @torch.no_grad()
    def values(self, critic_features: Tensor) -> Tensor:
        return torch.cat([self.policy.value(self.encode(piece)) for piece in _pieces(critic_features)])

    def gradients(
        self, batch: DeviceBatch, where: Tensor | None, *, trains_pi: bool, trains_vf: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        # Both networks see the same images, which are taken once.
        rows, policy = replace(batch, critic_features=batch.features).rows(where), self.policy
        with torch.set_grad_enabled(trains_pi):
            seen = self.encode(rows.flat().features)
        value_loss = self._value_loss(seen, rows) if trains_vf else None
        metrics = None
        if trains_pi:
            total, metrics = self._policy_loss(self._distribution(seen, rows), rows.flat())
            shared = total if value_loss is None else total + self.objective.value_coef * value_loss
            write_gradient(shared, policy.actor_parameters(), self.pi_adam.flat.gradient, retain_graph=trains_vf)
        if value_loss is None:
            return metrics, None
        write_gradient(value_loss, policy.critic_parameters(), self.vf_adam.flat.gradient)
        return metrics, value_loss.detach().reshape(1)


def _pieces(images: Tensor) -> list[Tensor]:
    return [images[first : first + IMAGES_AT_A_TIME] for first in range(0, len(images), IMAGES_AT_A_TIME)]


def _slots(truncated: Tensor) -> Tensor:
    """[T, L] how often a lane was truncated before a row."""
    return truncated.cumsum(0) - truncated.long()


def write_gradient(
    loss: Tensor, parameters: Sequence[nn.Parameter], flat: Tensor, *, retain_graph: bool = False
) -> None:
    """Write the loss's gradients, one parameter after the other, into the vector `flat`."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=retain_graph)
    torch.cat([gradient.reshape(-1) for gradient in gradients], out=flat)
