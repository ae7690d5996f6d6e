"""The check of the kernel contract that compares the ways in which a network runs: to act, to learn, and as a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from relayrl.accelerator.live_actor import live_actor
from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.image_update import reference_update
from relayrl.algorithms.updates.torch_update import Batch, PassPlan, TorchUpdate
from relayrl.data.trees import Array, Tree, map_tree
from relayrl.models.policy import ActorCritic
from relayrl.testing.checks.network_bench import NUM_ROWS, NetworkBench

RELATIVE, TOLERANCE = 1e-4, 1e-5
OBJECTIVE = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)


def acts_and_learns_as_the_module(bench: NetworkBench) -> str | None:
    """acting, learning and the module itself give the same outputs, and learning the module's gradients"""
    policy, obs = bench.policy(), bench.observations(NUM_ROWS)
    with torch.no_grad():
        features = policy.features(map_tree(torch.from_numpy, obs))
        distribution, value = policy.distribution(features).numpy(), policy.value(features).numpy()
    action = policy.head.sample(distribution, np.random.default_rng(0))
    logp = policy.head.log_prob_numpy(distribution, action)
    rng = np.random.default_rng(1)
    advantage, target = (rng.normal(size=NUM_ROWS).astype(np.float32) for _ in range(2))
    rows = Batch(np.empty(0), action, None, np.asarray(logp, np.float32), advantage, target, target)
    (found_value, found_logp, found_gradient), (_, _, gradient) = (
        _learned(make, policy, obs, rows) for make in (FASTEST.update, reference_update)
    )
    pairs = {
        "the distribution that acts": (live_actor(policy).distribution(obs), distribution),
        "the log-probability that is learned from": (found_logp, logp),
        "the value that is learned from": (found_value, value),
        "the gradient": (found_gradient, gradient),
    }
    far = [name for name, (got, want) in pairs.items() if not np.allclose(got, want, RELATIVE, TOLERANCE)]
    return f"{far[0]} is not the module's" if far else None


def _learned(
    make: Callable[..., TorchUpdate], policy: ActorCritic, obs: Tree, rows: Batch
) -> tuple[Array, Array, Array]:
    """Values, log-probabilities, and Adam's first moments after a step that moves nothing: a tenth of the gradients."""
    adams = [FlatAdam(own, 0.0, None) for own in (policy.actor_parameters(), policy.critic_parameters())]
    update = make(policy, OBJECTIVE, *adams)
    rows = replace(rows, features=update.features(obs))
    value, logp = update.value(rows.features), update.log_prob(rows.features, None, rows.action)
    update.begin(rows, PassPlan(NUM_ROWS, 1, 1, NUM_ROWS, np.random.default_rng(2)))()
    return value, logp, np.concatenate([10.0 * adam.first_moment.numpy() for adam in adams])
