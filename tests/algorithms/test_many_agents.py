"""What many agents cost a central critic: memory for what they see, and not for that once more for each of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_off_policy import ALGORITHMS, make_learner, random_transitions

from relayrl.accelerator.replay_updates import accelerated
from relayrl.algorithms.critics.critic_views import CentralView
from relayrl.data.columns import Rollout
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_registry import make_vector
from relayrl.extend import assemble
from relayrl.models.networks.shared_rows import SharedRows
from relayrl.runtime.collector import Collector
from relayrl.training.queued.rl_trainer import RLTrainer

NUM_AGENTS = 32


def played(algo: str, params: dict[str, Any], network: dict[str, Any], **options: Any) -> tuple[RLTrainer, Rollout]:
    """A trainer that has received what 32 agents did on 4 × 25 steps."""
    settings = RunSettings.model_validate(
        {
            "env": "native:simple_spread",
            "algo": algo,
            "params": params,
            "environment": {"num_envs": 4, "options": {"N": NUM_AGENTS, **options}},
            "network": {"hidden_sizes": [16], **network},
        }
    )
    envs = make_vector(settings.env, settings.environment)
    parts = assemble(settings, envs)
    collector = Collector(envs, parts.actors, num_steps=25, seed=1, rng=np.random.default_rng(0), records_states=False)
    rollouts = collector.collect(0)
    parts.trainer.receive(rollouts)
    return parts.trainer, rollouts["agent"]


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that `work` allocates at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("normalizes", [False, True])
def test_an_update_takes_the_memory_of_what_agents_see(normalizes: bool) -> None:
    """Laid out for every agent, what the critic sees would be 32 times the observations."""
    params = {"train_pi_iters": 1, "train_vf_iters": 1}
    trainer, rollout = played("mappo", params, {"normalize_observations": normalizes})
    assert peak_bytes(trainer.advance) < 12 * rollout.obs.nbytes


@pytest.mark.parametrize(
    ("algo", "is_continuous"), [("maddpg", True), ("matd3", True), ("masac", True), ("masac", False)]
)
def test_a_gradient_step_takes_the_memory_of_what_a_batch_of_agents_sees(algo, is_continuous):
    """Laid out for every agent, what the critics see of a batch would be 32 times its observations."""
    params = {"batch_size": 100, "buffer_size": 100, "learning_starts": 1, "update_interval": 100, "train_iters": 1}
    trainer, rollout = played(algo, params, {}, continuous_actions=is_continuous)
    assert peak_bytes(trainer.advance) < 10 * rollout.obs.nbytes


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_updates_do_not_depend_on_how_what_is_shared_is_multiplied(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels, each line once or row by row, and by torch."""
    results = []
    for is_accelerated, is_factored in ((True, True), (True, False), (False, False)):
        with monkeypatch.context() as patches:
            patches.setattr(SharedRows, "pays_factored", lambda *_, answer=is_factored: answer)
            learner = make_learner(algo, groups={"wolf": 9, "sheep": 4}, view=CentralView)
            transitions = random_transitions(learner)
            transitions.groups["wolf"].valid[:5, 2] = False
            update = accelerated(learner).update if is_accelerated else learner.update
            for _ in range(4):
                update(transitions)
        modules = [module for group in learner.groups.values() for module in (group.policy, group.q)]
        results.append(torch.cat([p.detach().flatten() for module in modules for p in module.parameters()]))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-3, atol=1e-4)
