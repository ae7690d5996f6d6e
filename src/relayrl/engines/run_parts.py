"""The parts of a local run, put together: worlds, policies, trainer, collector, reward signals, and the pace they keep.

What records and replays trajectories is imported where a run asks for it: Arrow's library takes 25 MiB.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import threadpoolctl
import torch

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.registry import algorithms
from relayrl.config.plugin_registry import PluginKind, load_plugin
from relayrl.engines.assembly import Assembly, assemble
from relayrl.engines.memory_needs import require_fits_memory
from relayrl.engines.overlap import InTurns, Overlapping, Pace
from relayrl.engines.phase_clock import PhaseClock
from relayrl.engines.plugins import algorithm_plugin
from relayrl.engines.run_settings import RunSettings, build_run_settings
from relayrl.envs.contract import VectorEnvironment
from relayrl.envs.on_host import on_host
from relayrl.envs.registry import make_vector
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.actor import Actor
from relayrl.models.exploration import Exploration
from relayrl.models.one_thread import one_thread
from relayrl.models.policy import Policy
from relayrl.models.warmup_actor import WarmupActor
from relayrl.runtime.collector import Collector
from relayrl.training.off_policy import OffPolicyTrainer
from relayrl.training.policy_trainer import PolicyTrainer
from relayrl.training.reward_signals import RewardSignals
from relayrl.training.rl_trainer import Rollouts, RolloutTrainer
from relayrl.training.seeding import Stream, stream_seed
from relayrl.training.statistics import Statistics

if TYPE_CHECKING:
    from relayrl.engines.recording import Recorder


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run consists of. `acting` are the policies that the collector acts with: those that learn, or copies."""

    env: VectorEnvironment
    policies: dict[str, Policy]
    acting: dict[str, Policy]
    trainer: PolicyTrainer
    collector: Collector
    signals: RewardSignals
    block_steps: int  # environment steps per rollout, summed over worlds
    recorder: Recorder | None = None

    def _on_rollouts(self, rollouts: Rollouts) -> None:
        """What happens to every block before it is learned from: records keep the environment's own rewards."""
        if self.recorder is not None:
            self.recorder.record(rollouts)
        self.signals.add_to(rollouts)

    def close(self) -> None:
        """Release the worlds, and make durable what was recorded."""
        try:
            if self.recorder is not None:
                self.recorder.close()
        finally:
            self.env.close()

    def pace(self, settings: RunSettings, statistics: Statistics, clock: PhaseClock, save: Callable[[], None]) -> Pace:
        """How collecting and learning share the time."""
        if settings.learn_from is not None:
            from relayrl.engines.offline import Offline

            assert isinstance(self.trainer, OffPolicyTrainer)
            return Offline(self.trainer, statistics, self.collector, clock, self.block_steps)
        if not settings.trainer.threaded:
            return InTurns(self.trainer, statistics, self.collector, clock, self._on_rollouts)
        driven = RolloutTrainer(
            settings.env,
            settings.trainer,
            make_policy=lambda group, _: self.policies[group],
            make_learner=lambda _: self.trainer,
            stats_reporter=statistics,
            save=save,
        )
        for name, group in self.env.groups.items():
            driven.add_policy(name, driven.create_policy(name, group))
        return Overlapping(driven, self.acting, self.collector, clock, self._on_rollouts)


def make_run_parts(env: str, *, algo: str | None = None, settings: Mapping[str, Any] | None = None) -> RunParts:
    """The parts of a run, for a program that drives them itself; `settings` go over the preset of `env`, where it has one."""
    flags = {} if algo is None else {"algo": algo}
    return build_parts(build_run_settings(env, None, flags, list((settings or {}).items())))


def build_parts(settings: RunSettings) -> RunParts:
    """Make everything, with the threads that the settings allow; where that fails, the worlds are closed."""
    limit_threads(settings.threads)
    env = on_host(make_vector(settings.env, settings.environment))
    try:
        return _build(settings, env)
    except BaseException:
        env.close()
        raise


def _build(settings: RunSettings, env: VectorEnvironment) -> RunParts:
    for name in settings.behaviors:
        if name not in env.groups:
            raise UnknownNameError("behaviour", name, env.groups)
    require_fits_memory(settings, env)
    make = assemble if settings.algo in algorithms() else algorithm_plugin(settings.algo).assemble
    with one_thread():  # a plugin's networks too begin with the same numbers, whatever `threads` is
        parts = make(settings, env)
    _require_overrides_taken(settings, parts)
    acting, actors = parts.policies, parts.actors
    if settings.trainer.threaded:
        acting = {name: copy.deepcopy(policy) for name, policy in parts.policies.items()}
        actors = {name: _actor_of(policy, parts) for name, policy in acting.items()}
    collector = Collector(
        env,
        actors,
        num_steps=parts.rollout_steps,
        seed=stream_seed(settings.seed, Stream.ENVIRONMENT),
        rng=np.random.default_rng(stream_seed(settings.seed, Stream.ACTING)),
        records_logp=_records_logp(settings, parts, actors),
        records_states=parts.trainer.needs_states,
    )
    signals = {
        name: (load_plugin(PluginKind.REWARD_SIGNAL, name)(**own.options), own.strength)
        for name, own in settings.reward_signals.items()
    }
    block_steps = parts.rollout_steps * env.num_envs
    if settings.learn_from is not None:
        from relayrl.engines.offline import fill_from

        fill_from(settings.learn_from, parts.trainer, env.groups)
    recorder = None if settings.record is None else _recorder(settings.record)
    rules = RewardSignals(signals)
    return RunParts(env, parts.policies, acting, parts.trainer, collector, rules, block_steps, recorder)


def _recorder(url: str) -> Recorder:
    from relayrl.engines.recording import Recorder
    from relayrl.sinks.contract import open_sink

    return Recorder(open_sink(url))


def _records_logp(settings: RunSettings, parts: Assembly, actors: Mapping[str, Actor]) -> bool:
    """Whether actions are recorded with their probabilities: where a newer policy learns from them, or where it is free."""
    if isinstance(parts.trainer, OffPolicyTrainer):
        return False  # replay does not ask
    return settings.trainer.threaded or all(actor.knows_logp for actor in actors.values())


def _require_overrides_taken(settings: RunSettings, parts: Assembly) -> None:
    """An override that an algorithm does not look at must not be ignored in silence."""
    for name, own in settings.behaviors.items():
        if own.network and parts.policies[name].network != settings.network_of(name):
            raise ConfigError(f"{settings.algo} takes no behaviors.{name}.network; set network for all groups")
        if own.params and isinstance(parts.trainer, OffPolicyTrainer):
            raise ConfigError(
                f"{settings.algo} trains all groups from one replay and takes no behaviors.{name}.params; set params"
            )


def limit_threads(count: int) -> None:
    """Threads of torch. NumPy's BLAS has one: its sums must not depend on them, and two pools would wait for each other."""
    torch.set_num_threads(count)
    threadpoolctl.threadpool_limits(limits=1, user_api="blas")


def _actor_of(policy: Policy, parts: Assembly) -> Actor:
    """An actor for a copy of one of the assembly's policies; snapshots set how it explores."""
    actor = live_actor(policy)
    return WarmupActor(actor, Exploration) if isinstance(parts.trainer, OffPolicyTrainer) else actor
