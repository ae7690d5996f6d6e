"""From settings and an environment to the parts of a run: policies, the actors that act with them, and their trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relayrl.algorithms.critic_sight import StateOffer
from relayrl.algorithms.registry import AlgorithmEntry, algorithm
from relayrl.engines.plugins import network_kernels
from relayrl.engines.run_settings import RunSettings
from relayrl.envs.contract import AgentGroup, VectorEnvironment
from relayrl.models.actor import Actor
from relayrl.models.live_actor import live_actor
from relayrl.models.policy import Policy
from relayrl.models.warmup_actor import WarmupActor
from relayrl.training.construction import GroupPlan, LearnerPlan, OffPolicyLearner, build_learner
from relayrl.training.policy_trainer import PolicyTrainer


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a run that depend on its algorithm."""

    policies: dict[str, Policy]
    actors: dict[str, Actor]
    trainer: PolicyTrainer
    rollout_steps: int  # steps of each world per rollout


def assemble(settings: RunSettings, env: VectorEnvironment) -> Assembly:
    """Build policies, actors and trainer of one of RelayRL's algorithms for the environment's groups."""
    return _assembled(algorithm(settings.algo), settings, env)


def assembly_of(kind: type[Any]) -> Callable[[RunSettings, VectorEnvironment], Assembly]:
    """`AlgorithmPlugin.assemble` of an algorithm class, such as one that is derived from `OffPolicyAlgorithm`."""

    def assemble_kind(settings: RunSettings, env: VectorEnvironment) -> Assembly:
        return _assembled(AlgorithmEntry(settings.algo, type(settings.params), "", algorithm=kind), settings, env)

    return assemble_kind


def _assembled(entry: AlgorithmEntry, settings: RunSettings, env: VectorEnvironment) -> Assembly:
    offer = None if env.state_space is None else StateOffer(env.state_space, env.state_repeats_observations)
    plan = LearnerPlan(
        entry,
        settings.params,
        settings.seed,
        env.num_envs,
        settings.trainer.max_steps,
        offer if entry.is_central else None,
    )
    learner = build_learner(plan, [_plan(settings, group) for group in env.groups.values()])
    policies = dict(learner.policies)
    if not isinstance(learner, OffPolicyLearner):
        actors = {name: live_actor(policy) for name, policy in policies.items()}
        return Assembly(policies, actors, learner.trainer, settings.trainer.time_horizon)
    trainer = learner.trainer
    warming: dict[str, Actor] = {
        name: WarmupActor(live_actor(policy), lambda: trainer.is_warming_up) for name, policy in policies.items()
    }
    return Assembly(policies, warming, trainer, max(1, trainer.update_interval // env.num_envs))


def _plan(settings: RunSettings, group: AgentGroup) -> GroupPlan:
    network = settings.network_of(group.name)
    return GroupPlan(
        group.name,
        group.observation_space,
        group.action_space,
        group.num_agents,
        network,
        settings.params_of(group.name),
        network_kernels(network),
    )
