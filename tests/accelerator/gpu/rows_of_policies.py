"""Policies, batches of rows and the reference's numbers, for the tests of the GPU's kernels."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from relayrl.algorithms.losses import Objective, entropy_bonus, kl_estimate
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_update import DeviceBatch
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic


def make_policy(action_space, hidden=(8,), activation="tanh", num_features=3, seed=0):
    """A policy whose outputs differ from row to row, with its two optimisers."""
    box = spaces.Box(-1.0, 1.0, (num_features,), np.float32)
    settings = NetworkSettings(hidden_sizes=hidden, activation=activation)
    policy = ActorCritic(box, action_space, settings, torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    optimizers = FlatAdam(policy.actor_parameters(), 1e-3, 0.5), FlatAdam(policy.critic_parameters(), 1e-3, 0.5)
    return policy, *optimizers


def make_rows(policy, num_rows, has_mask=False, seed=0):
    """Rows that the policy might have acted on."""
    g = torch.Generator().manual_seed(seed)
    head, num_features = policy.head, policy.encoder.num_features
    features = torch.randn(num_rows, num_features, generator=g)
    mask = None
    if has_mask:
        mask = torch.rand(num_rows, head.num_outputs, generator=g) < 0.6
        for part in head.slices:
            mask[:, part.start] = True
    parts = getattr(head, "part_sizes", ())
    if not parts:
        action = 0.7 * torch.randn(num_rows, head.num_actions, generator=g)
    else:
        chosen = []
        for where, start in zip(head.slices, head.starts, strict=True):
            allowed = torch.ones(num_rows, where.stop - where.start) if mask is None else mask[:, where].float()
            chosen.append(torch.multinomial(allowed, 1, generator=g)[:, 0] + start)
        action = torch.stack(chosen, -1) if len(parts) > 1 else chosen[0]
    with torch.no_grad():
        logp = head.log_prob(policy.distribution(features, mask), action)
    logp = logp + 0.3 * torch.randn(num_rows, generator=g)
    advantage, target, old_value = torch.randn(3, num_rows, generator=g)
    return DeviceBatch(features, features, action, mask, logp, advantage, target, old_value)


def reference_policy_gradient(policy, objective: Objective, rows: DeviceBatch, which: Tensor):
    """(gradient, [loss, KL, entropy, clip fraction]) by autograd over `algorithms.losses`."""
    mask = None if rows.mask is None else rows.mask[which]
    distribution = policy.distribution(rows.features[which], mask)
    log_ratio = policy.head.log_prob(distribution, rows.action[which]) - rows.logp[which]
    advantage, entropy = rows.advantage[which], policy.head.entropy(distribution)
    loss = objective.policy_loss.loss(log_ratio, advantage)
    total = loss + entropy_bonus(entropy, objective.entropy_coef)
    gradients = torch.autograd.grad(total, policy.actor_parameters())
    reported = loss + objective.policy_loss.offset(rows.logp[which], advantage)
    clipped = objective.policy_loss.clip_fraction(log_ratio.exp())
    metrics = torch.stack([reported, kl_estimate(log_ratio), entropy.mean(), clipped]).detach()
    return torch.cat([g.reshape(-1) for g in gradients]), metrics


def reference_value_gradient(policy, objective: Objective, rows: DeviceBatch, which: Tensor):
    """(gradient, loss) by autograd."""
    value = policy.normalized_value(rows.critic_features[which])
    loss = objective.value_loss(value, rows.old_value[which], rows.target[which])
    gradients = torch.autograd.grad(loss, policy.critic_parameters())
    return torch.cat([g.reshape(-1) for g in gradients]), loss.detach()
