"""The check of the kernel contract that compares the ways in which a network runs: to act, to learn, and as a module."""

from __future__ import annotations

import numpy as np
import torch

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.on_policy import gradients_of
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.policy_gradients import AutogradGradients, Batch, ClippedSurrogate, Gradients, Objective
from relayrl.data.trees import Array, map_tree
from relayrl.models.actor_critic import ActorCritic
from relayrl.testing.kernel_bench import NUM_ROWS, KernelBench

RELATIVE, TOLERANCE = 1e-4, 1e-5
OBJECTIVE = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)


def acts_and_learns_as_the_module(bench: KernelBench) -> str | None:
    """acting, learning and the module itself give the same outputs, and learning the module's gradients"""
    policy, obs = bench.policy(), bench.observations(NUM_ROWS)
    with torch.no_grad():
        features = policy.features(map_tree(torch.from_numpy, obs))
        distribution, value = policy.distribution(features).numpy(), policy.value(features).numpy()
    for parameters, lr in ((policy.actor_parameters(), 0.0), (policy.critic_parameters(), 0.0)):
        FlatAdam(parameters, lr, None)  # as learning lays them out
    learning = gradients_of(policy, OBJECTIVE)
    action = policy.head.sample(distribution, np.random.default_rng(0))
    logp = policy.head.log_prob_numpy(distribution, action)
    pairs = {
        "the distribution that acts": (live_actor(policy).distribution(obs), distribution),
        "the log-probability that is learned from": (learning.log_prob(features.numpy(), None, action), logp),
        "the value that is learned from": (learning.value(features.numpy()), value),
    }
    rng = np.random.default_rng(1)
    advantage, target = (rng.normal(size=NUM_ROWS).astype(np.float32) for _ in range(2))
    rows = Batch(features.numpy(), action, None, np.asarray(logp, np.float32), advantage, target, target)
    pairs["the gradient"] = (_gradient(learning, rows), _gradient(AutogradGradients(policy, OBJECTIVE), rows))
    far = [name for name, (got, want) in pairs.items() if not np.allclose(got, want, RELATIVE, TOLERANCE)]
    return f"{far[0]} is not the module's" if far else None


def _gradient(gradients: Gradients, rows: Batch) -> Array:
    gradients.policy_gradient(rows)
    gradients.value_gradient(rows)
    return np.concatenate([p.grad.numpy().ravel() for p in _parameters(gradients.policy) if p.grad is not None])


def _parameters(policy: ActorCritic) -> list[torch.nn.Parameter]:
    return [*policy.actor_parameters(), *policy.critic_parameters()]
