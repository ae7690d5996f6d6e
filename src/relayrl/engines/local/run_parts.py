"""The one place that builds a run: from settings to environment, policies, trainer, actors, collector, and their pace.

`assemble` makes what depends on the algorithm, and is what a plugin's algorithm replaces; `build_parts` makes everything, for
`relayrl train`, `--from`, export and programs (`make_run_parts`) alike. Networks are `training.trainers.construction`'s.

What records and replays trajectories is imported where a run asks for it: Arrow's library takes 25 MiB.
"""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import threadpoolctl
import torch

from relayrl.algorithms.critics.critic_sight import StateOffer
from relayrl.algorithms.registry import AlgorithmEntry, algorithm, algorithms
from relayrl.config.plugin_registry import PluginKind, has_plugin, plugin_names
from relayrl.data.columns import LaneHeader, Rollout, copied_rollout
from relayrl.engines.given_parts import load_part, loss_maker
from relayrl.engines.local.memory_needs import require_fits_memory
from relayrl.engines.local.overlap import InTurns, Overlapping, Pace
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.plugins import algorithm_plugin, engine_builder, network_factory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.envs.environment_contract import AgentGroup, VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.rendering import RenderMode
from relayrl.envs.vector.on_host import on_host
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.acting.actor import Actor
from relayrl.models.compute_device import CPU, compute_device, set_gpu_arithmetic
from relayrl.models.networks.one_thread import one_thread
from relayrl.models.policy import Policy
from relayrl.runtime.collector import Collector, OnEnded, RolloutCollector
from relayrl.training.queued.rl_trainer import Rollouts, RolloutTrainer
from relayrl.training.signals.reward_signals import RewardSignal, RewardSignals
from relayrl.training.signals.signal_registry import SIGNALS, SignalGroup, make_signal, signal_names
from relayrl.training.signals.signal_settings import EXTRINSIC
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.construction import GroupPlan, LearnerPlan, build_learner
from relayrl.training.trainers.policy_trainer import PolicyTrainer
from relayrl.training.trainers.seeding import Stream, stream_seed

if TYPE_CHECKING:
    from relayrl.engines.local.run_recorder import Recorder
    from relayrl.engines.self_play.league import League
    from relayrl.training.imitation.behavioral_cloning import BehavioralCloning
    from relayrl.training.imitation.imitation_settings import BehavioralCloningSettings
    from relayrl.training.learners.learner_group import LearnerGroup


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a run that depend on its algorithm."""

    policies: dict[str, Policy]
    actors: dict[str, Actor]
    trainer: PolicyTrainer
    rollout_steps: int  # steps of each environment per rollout
    learners: LearnerGroup | None = None  # where several learn


MakeCollector = Callable[["RunSettings", "VectorEnvironment", Assembly, "League | None"], RolloutCollector]
"""Gives the collector of a run's environments, in which a league's games may be played."""


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run consists of. `acting` are the policies that the collector acts with: those that learn, or copies."""

    env: VectorEnvironment
    policies: dict[str, Policy]
    acting: dict[str, Policy]
    trainer: PolicyTrainer
    collector: RolloutCollector
    signals: RewardSignals
    block_steps: int  # environment steps per rollout, summed over environments
    recorder: Recorder | None = None
    learners: LearnerGroup | None = None
    league: League | None = None

    def pretrain(self) -> None:
        """Clone demonstrations before the first step, where the settings ask for it and no checkpoint was loaded."""
        if self.trainer.cloning is None:
            return
        self.trainer.cloning.pretrain()
        for name, policy in self.acting.items():
            if policy is not self.policies[name]:
                policy.load_state_dict(self.policies[name].state_dict())

    def collect(self, policy_version: int) -> Rollouts:
        """The next rollout as the run learns from it, reward signals added; the last is as short as `max_steps` asks for.

        It may wait in a queue: the collector, which writes into its columns again two rollouts later, keeps its own.
        """
        num_envs, trainer = self.env.num_envs, self.trainer
        num_left = -(-trainer.max_steps // num_envs) - trainer.num_env_steps // num_envs
        if self.league is not None:
            self.league.advance(trainer.num_env_steps, policy_version)
        rollouts = self.collector.collect(policy_version, max(1, min(self.block_steps // num_envs, num_left)))
        self._on_rollouts(rollouts)
        return {name: copied_rollout(rollout) for name, rollout in rollouts.items()}

    def _on_rollouts(self, rollouts: dict[str, Rollout]) -> dict[str, float]:
        """What happens to every block before it is learned from: records keep the environment's own rewards, and what opponents
        in self-play did.

        Gives the metrics of reward signals and self-play."""
        learned = rollouts if self.league is None else self.league.take_learner_rows(rollouts)
        if self.recorder is not None:
            self.recorder.record(rollouts)
        rollouts.update(learned)
        metrics = self.signals.add_to(rollouts)
        return metrics if self.league is None else metrics | self.league.take_metrics()

    @property
    def notes(self) -> list[str]:
        """What somebody should know of how the parts are placed."""
        return []

    def close(self) -> None:
        """Release the environments and other learners, and make durable what was recorded."""
        with contextlib.ExitStack() as parts:
            for part in (self.env, self.learners, self.recorder):
                if part is not None:
                    parts.callback(part.close)

    def pace(self, settings: RunSettings, statistics: Statistics, clock: PhaseClock, save: Callable[[], None]) -> Pace:
        """How collecting and learning share the time."""
        if settings.learn_from is not None:
            from relayrl.engines.local.offline import Offline

            return Offline(self.trainer, statistics, self.collector, clock, self.env.num_envs)
        if not settings.trainer.threaded:
            # torch's idle threads spin for some 10 ms before they sleep, on cores that worker processes step on.
            collecting = one_thread if settings.environment.workers else contextlib.nullcontext
            return InTurns(self.trainer, statistics, self.collector, clock, self._on_rollouts, collecting)
        driven = RolloutTrainer(
            settings.env,
            settings.trainer,
            make_policy=lambda group, _: self.policies[group],
            make_learner=lambda _: self.trainer,
            stats_reporter=statistics,
            save=save,
            keeps_schedule=False,  # the engine writes rows and checkpoints
        )
        for name, group in self.env.groups.items():
            driven.add_policy(name, driven.create_policy(name, group))
        return Overlapping(driven, self.acting, self.collector, clock, self._on_rollouts)


def make_run_parts(env: str, *, algo: str | None = None, settings: Mapping[str, Any] | None = None) -> RunParts:
    """The parts of a run, for a program that drives them itself; `settings` go over the preset of `env`, or over the generic
    settings for problems of its kind, as in `train`."""
    from relayrl.engines.settings.generic_presets import one_env, preset_for

    def generic_preset(so_far: RunSettings) -> dict[str, Any]:
        looked_at = one_env(so_far)
        looked_at.close()
        return preset_for(so_far, looked_at)[0]

    flags = {} if algo is None else {"algo": algo}
    assignments = list((settings or {}).items())
    chosen = build_run_settings(env, None, flags, assignments, generic=generic_preset)
    return engine_builder(chosen.engine)(chosen)


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
    state = offer if entry.is_central else None
    horizon, max_steps = settings.trainer.time_horizon, settings.trainer.max_steps
    relabel = env.relabel if env.has_goals else None
    given = (entry, settings.params, settings.seed, env.num_envs, max_steps, state, horizon, relabel)
    plan = LearnerPlan(*given, device=compute_device(settings.device))
    learners = _learners(settings)
    if learners is not None:
        plan = replace(plan, backend=learners.backend)
    learner = build_learner(plan, [_plan(settings, group) for group in env.groups.values()])
    policies, trainer = dict(learner.policies), learner.trainer
    actors = {name: trainer.actor_for(policy) for name, policy in policies.items()}
    return Assembly(policies, actors, trainer, trainer.rollout_steps(horizon, env.num_envs), learners)


def _learners(settings: RunSettings) -> LearnerGroup | None:
    if settings.learners == 1:
        return None
    if compute_device(settings.device) != CPU:
        raise ConfigError(f"{settings.learners} learners share their steps on the CPU; set learners=1 or device=cpu")
    from relayrl.training.learners.learner_group import LearnerGroup  # torch.distributed, which few runs need

    return LearnerGroup(settings.learners, settings.threads)


def _plan(settings: RunSettings, group: AgentGroup) -> GroupPlan:
    network = settings.network_of(group.name)
    return GroupPlan(
        group.name,
        group.observation_space,
        group.action_space,
        group.num_agents,
        network,
        settings.params_of(group.name),
        network_factory(network),
        None if network.head is None else load_part(PluginKind.HEAD, network.head),
        None if settings.loss is None else loss_maker(settings.loss),
    )


def build_parts(settings: RunSettings, *, collects: bool = True) -> RunParts:
    """Make everything, with the threads that the settings allow; where that fails, the environments are closed.

    A run that does not collect is fed with trajectories of other processes, which whoever feeds it records.
    """
    limit_threads(settings.threads)
    set_gpu_arithmetic(compute_device(settings.device), deterministic=settings.deterministic, tf32=settings.tf32)
    if settings.device != "cpu" and collects:
        from relayrl.engines.device.resident_run import build_resident

        resident = build_resident(settings)
        if resident is not None:
            return resident
    is_drawn = settings.environment.exclusive and settings.evaluation.video is not None
    render = RenderMode.RGB_ARRAY if is_drawn else None
    return build_around(
        settings, on_host(make_vector(settings.env, settings.environment, render=render)), collects=collects
    )


def build_around(
    settings: RunSettings,
    env: VectorEnvironment,
    make_collector: MakeCollector | None = None,
    *,
    collects: bool = True,
) -> RunParts:
    """The same around environments, which are closed where it fails; others may collect than this process."""
    try:
        return _build(settings, env, make_collector or _collector_here, collects=collects)
    except BaseException:
        env.close()
        raise


def assemble_checked(settings: RunSettings, env: VectorEnvironment) -> Assembly:
    """What depends on the algorithm, RelayRL's or a plugin's."""
    for name in settings.behaviors:
        if name not in env.groups:
            raise UnknownNameError("behaviour", name, env.groups)
    make = assemble if settings.algo in algorithms() else algorithm_plugin(settings.algo).assemble
    with one_thread():  # a plugin's networks too begin with the same numbers, whatever `threads` is
        parts = make(settings, env)
    _require_overrides_taken(settings, parts)
    if settings.learners > 1 and parts.learners is None:
        raise ConfigError(f"{settings.algo} learns in one process; leave learners at 1")
    return parts


def collector_of(
    settings: RunSettings,
    env: VectorEnvironment,
    parts: Assembly,
    seed: int | None = None,
    on_ended: OnEnded | None = None,
) -> Collector:
    """The collector of environments in this process."""
    return Collector(
        env,
        parts.actors,
        num_steps=parts.rollout_steps,
        seed=stream_seed(settings.seed, Stream.ENVIRONMENT) if seed is None else seed,
        rng=np.random.default_rng(stream_seed(settings.seed, Stream.ACTING)),
        records_logp=_records_logp(settings, parts),
        records_states=parts.trainer.needs_states,
        records_values=parts.trainer.uses_logp and not settings.acts_with_older_policies,
        on_ended=on_ended,
    )


def _collector_here(settings: RunSettings, env: VectorEnvironment, parts: Assembly, league: League | None) -> Collector:
    """The same, where a league's games may be played."""
    if league is None:
        return collector_of(settings, env, parts)
    actors = league.seat(parts.actors, equal_numbers=settings.cluster.equal_numbers)
    return collector_of(settings, env, replace(parts, actors=actors), on_ended=league.end_games)


def _build(settings: RunSettings, env: VectorEnvironment, make_collector: MakeCollector, *, collects: bool) -> RunParts:
    require_fits_memory(settings, env)
    parts, acting = assemble_checked(settings, env), None
    if parts.trainer.needs_records and (settings.learn_from is None or not collects):
        raise ConfigError(
            f"{settings.algo} learns from recorded trajectories and never acts; name them with --from URL"
        )
    if settings.trainer.threaded:
        acting = {name: copy.deepcopy(policy) for name, policy in parts.policies.items()}
        parts = replace(parts, actors={name: parts.trainer.actor_for(policy) for name, policy in acting.items()})
    acting = acting or parts.policies
    league = _league(settings, env, acting, parts.trainer, collects=collects)
    collector = make_collector(settings, env, parts, league)
    block_steps = parts.rollout_steps * env.num_envs
    if settings.learn_from is not None:
        from relayrl.engines.local.offline import fill_from

        fill_from(settings.learn_from, parts.trainer, env.groups)
    if settings.behavioral_cloning is not None:
        parts.trainer.cloning = _cloning(settings, settings.behavioral_cloning, parts.trainer, env)
    if not collects:
        parts.trainer.take_one_environment_at_a_time()
    recorder = _recorder(settings.record) if collects and settings.record is not None else None
    signals = _reward_signals(settings, env)
    own = (env, parts.policies, acting, parts.trainer, collector, signals, block_steps)
    return RunParts(*own, recorder, parts.learners, league)


def _league(
    settings: RunSettings,
    env: VectorEnvironment,
    acting: Mapping[str, Policy],
    trainer: PolicyTrainer,
    *,
    collects: bool,
) -> League | None:
    """Who plays against whom, where the settings ask for self-play."""
    if settings.self_play is None:
        return None
    if not collects:
        raise ConfigError("self_play needs the run's own environments; train without a server, or leave self_play out")
    from relayrl.engines.self_play.league import League
    from relayrl.engines.self_play.snapshots import Snapshots

    rng = np.random.default_rng(stream_seed(settings.seed, Stream.SELF_PLAY))
    return League(settings.self_play, env.groups, env.num_envs, Snapshots(acting, trainer.actor_for), rng)


def _cloning(
    settings: RunSettings, own: BehavioralCloningSettings, trainer: PolicyTrainer, env: VectorEnvironment
) -> BehavioralCloning:
    from relayrl.training.imitation.behavioral_cloning import BehavioralCloning

    if settings.learners > 1:
        raise ConfigError("behavioral_cloning steps the policies of one process; leave learners at 1")
    headers = {
        group.name: LaneHeader(group.name, env.env_ids, group.agent_ids, group.observation_space, group.action_space)
        for group in env.groups.values()
    }
    seeds = {name: stream_seed(settings.seed, Stream.CLONING, zlib.crc32(name.encode())) for name in headers}
    return BehavioralCloning(own, trainer.cloned_policies(), headers, seeds)


def _reward_signals(settings: RunSettings, env: VectorEnvironment) -> RewardSignals:
    own = settings.reward_signals
    extrinsic = own[EXTRINSIC].strength if EXTRINSIC in own else None
    made = {name: (_signal(name, settings, env), one.strength) for name, one in own.items() if name != EXTRINSIC}
    return RewardSignals(made, extrinsic)


def _signal(name: str, settings: RunSettings, env: VectorEnvironment) -> RewardSignal:
    options = settings.reward_signals[name].options
    if name not in SIGNALS:
        if ":" not in name and not has_plugin(PluginKind.REWARD_SIGNAL, name):
            known = [*signal_names(), *plugin_names(PluginKind.REWARD_SIGNAL)]
            raise UnknownNameError(PluginKind.REWARD_SIGNAL.noun, name, known)
        signal: RewardSignal = load_part(PluginKind.REWARD_SIGNAL, name)(**options)
        return signal
    groups = [
        SignalGroup(
            LaneHeader(group.name, env.env_ids, group.agent_ids, group.observation_space, group.action_space),
            settings.params_of(group.name).model_dump().get("gamma", 0.99),
            # By name: another signal of the run changes nothing for this one.
            stream_seed(settings.seed, Stream.REWARD_SIGNALS, zlib.crc32(f"{name}/{group.name}".encode())),
            compute_device(settings.device),
        )
        for group in env.groups.values()
    ]
    return make_signal(name, options, groups)


def _recorder(url: str) -> Recorder:
    from relayrl.engines.local.run_recorder import Recorder
    from relayrl.sinks.contract import open_sink

    return Recorder(open_sink(url))


def _records_logp(settings: RunSettings, parts: Assembly) -> bool:
    """Whether actions are recorded with their probabilities: where a newer policy learns from them, or where it is free."""
    is_free = all(actor.knows_logp for actor in parts.actors.values())
    return parts.trainer.uses_logp and (settings.acts_with_older_policies or is_free)


def _require_overrides_taken(settings: RunSettings, parts: Assembly) -> None:
    """An override that an algorithm does not look at must not be ignored in silence."""
    for name, own in settings.behaviors.items():
        if own.network and parts.policies[name].network != settings.network_of(name):
            raise ConfigError(f"{settings.algo} takes no behaviors.{name}.network; set network for all groups")
        if own.params and not parts.trainer.takes_params_per_group:
            raise ConfigError(
                f"{settings.algo} trains all groups from one replay and takes no behaviors.{name}.params; set params"
            )


def limit_threads(count: int) -> None:
    """Threads of torch. NumPy's BLAS has one: its sums must not depend on them, and two pools would wait for each other."""
    torch.set_num_threads(count)
    threadpoolctl.threadpool_limits(limits=1, user_api="blas")
