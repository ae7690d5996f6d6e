"""What actors record trains a policy to the same bits as the rollouts of a run: dying and late agents, several groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relayrl import AgentBuilder, RelayRLTrainer, TrainerArgs
from relayrl.engines.local.run_parts import RunParts, build_parts
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.models.policy import Policy, parameter_hash
from relayrl.runtime.collector import Collector
from relayrl.sinks.contract import open_source
from relayrl.training.trainers.policy_groups import PolicyGroup

DYING = "relayrl.testing.multi_agent_environments:DyingAgents"
NUM_ENVS, SEED = 3, 11


def settings_of(algo: str, horizon: int, **more: object) -> RunSettings:
    given = {
        "environment.num_envs": NUM_ENVS,
        "trainer.time_horizon": horizon,
        "trainer.max_steps": 1000,
        "network.hidden_sizes": [16],
        "seed": SEED,
        "params.traj_per_epoch": 1,
        **more,
    }
    return build_run_settings(DYING, None, {"algo": algo}, list(given.items()))


def rollouts_of_a_run(parts: RunParts, horizon: int) -> Collector:
    """As `relayrl train` collects, from the seeds that `run_env` takes."""
    actors = {name: parts.trainer.actor_for(policy) for name, policy in parts.policies.items()}
    rng, has_states = np.random.default_rng(SEED), parts.env.state_space is not None
    return Collector(
        parts.env, actors, num_steps=horizon, seed=SEED, rng=rng, records_logp=True, records_states=has_states
    )


def hashes(policies: dict[str, Policy]) -> dict[str, str]:
    return {name: parameter_hash(policy) for name, policy in policies.items()}


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("horizon", [12, 10])
@pytest.mark.parametrize("sink", ["memory", "arrow"])
def test_mappo_learns_the_same_from_records_as_from_rollouts(
    horizon: int, normalizes: bool, sink: str, tmp_path: Path
) -> None:
    """With 12 steps episodes end with the blocks, with 10 they go on."""
    settings = settings_of("mappo", horizon, **{"network.normalize_observations": normalizes})
    by_rollouts, by_records = build_parts(settings), build_parts(settings)
    collector = rollouts_of_a_run(by_rollouts, horizon)
    groups = {
        name: PolicyGroup(name, group.observation_space, group.action_space, group.masks_actions, group.agent_ids)
        for name, group in by_records.env.groups.items()
    }
    url = f"{sink}:{tmp_path / 'records'}"
    seen: set[object] = set()
    with AgentBuilder().actor_count(0).sink(url).build() as agent:
        actors = {name: agent.new_actor(model=own, group=name) for name, own in by_records.policies.items()}
        agent.set_env(actors, DYING, NUM_ENVS, seed=SEED)
        for update in range(3):
            by_rollouts.trainer.receive(collector.collect(update))
            by_rollouts.trainer.advance()
            agent.run_env(actors["sheep"], horizon)
            assert agent.flush()
            with open_source(url) as source:
                new = [t for t in source if t.trajectory_id not in seen]
            seen |= {t.trajectory_id for t in new}
            by_records.trainer.receive_trajectories(new, groups)
            by_records.trainer.advance()
            assert by_records.trainer.num_env_steps == by_rollouts.trainer.num_env_steps
            assert hashes(by_records.policies) == hashes(by_rollouts.policies)
            for name, policy in by_records.policies.items():
                agent.update_model(policy, group=name)
    for parts in (by_rollouts, by_records):
        parts.close()


def test_the_facade_learns_the_same_from_records_as_a_run_from_rollouts(tmp_path: Path) -> None:
    settings = settings_of("mappo", 12)
    parts = build_parts(settings)
    collector = rollouts_of_a_run(parts, 12)
    args = TrainerArgs(
        DYING, tmp_path, state_space=parts.env.state_space, network=settings.network, seed=SEED, max_steps=1000
    )
    trainer = RelayRLTrainer.mappo(args, settings.params)
    for name, group in parts.env.groups.items():
        for agent_id in group.agent_ids:
            spaces = {"observation_space": group.observation_space, "action_space": group.action_space}
            trainer.register_agent(agent_id, name, **spaces)
    assert hashes(trainer.policies) == hashes(parts.policies)
    url = f"arrow:{tmp_path / 'records'}"
    with AgentBuilder().actor_count(0).sink(url).build() as agent:
        actors = {name: agent.new_actor(model=own, group=name) for name, own in trainer.policies.items()}
        agent.set_env(actors, DYING, NUM_ENVS, seed=SEED)
        agent.run_env(actors["sheep"], 12)
    trainer.receive_trajectory(url)
    assert trainer.train_model()
    parts.trainer.receive(collector.collect(0))
    parts.trainer.advance()
    parts.close()
    assert hashes(trainer.policies) == hashes(parts.policies)
