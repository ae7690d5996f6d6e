"""The parts of a run whose environments are elsewhere: everything but the collectors is in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from relayrl.config.plugin_registry import PluginKind, registrations
from relayrl.engines.cluster.asynchronous_pace import Asynchronous, require_corrected
from relayrl.engines.cluster.cluster_collector import (
    ClusterCollector,
    EnvironmentsElsewhere,
    Fleet,
    is_sharded,
    part_bounds,
    part_plans,
)
from relayrl.engines.cluster.part_collector import PartPlan
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import Assembly, RunParts, build_around, limit_threads
from relayrl.engines.self_play.league import League
from relayrl.engines.settings.generic_presets import one_env
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.recipes import find_factory
from relayrl.envs.vector.on_host import on_host
from relayrl.errors import ConfigError
from relayrl.models.compute_device import compute_device, set_gpu_arithmetic
from relayrl.training.statistics.run_statistics import Statistics

_SHARED_STATISTICS = ("NormalizeObservation", "NormalizeReward")
"""Wrappers that learn from all environments that they see."""


@dataclass(frozen=True, slots=True)
class ClusterParts(RunParts):
    """The parts of a run with a fleet of collectors."""

    fleet: Fleet | None = None
    disconnect: Callable[[], None] = lambda: None

    def pace(self, settings: RunSettings, statistics: Statistics, clock: PhaseClock, save: Callable[[], None]) -> Pace:
        if not settings.cluster.asynchronous:
            return RunParts.pace(self, settings, statistics, clock, save)
        assert self.fleet is not None
        assert isinstance(self.collector, ClusterCollector)
        return Asynchronous(self, self.fleet, self.collector, statistics, clock)

    @property
    def notes(self) -> list[str]:
        assert isinstance(self.collector, ClusterCollector)
        collector, num_parts = self.collector, len(self.collector.bounds) - 1
        shared = [] if self.env.independent_streams else ["a generator"]
        shared += [name for name in collector.settings.environment.wrapper_names if name.endswith(_SHARED_STATISTICS)]
        if num_parts == 1 or not shared:
            return []
        return [
            f"the environments of each collector share {' and '.join(shared)}: another number than {num_parts} collectors "
            "gives another run"
        ]

    def close(self) -> None:
        try:
            if self.fleet is not None:
                self.fleet.close()
        finally:
            try:
                RunParts.close(self)
            finally:
                self.disconnect()


def build_cluster_parts(
    settings: RunSettings,
    make_fleet: Callable[[Sequence[PartPlan]], Fleet],
    disconnect: Callable[[], None] = lambda: None,
) -> ClusterParts:
    """The parts of a run around a fleet; where that fails, its members are ended and `disconnect` is called."""
    require_possible(settings)
    fleets: list[Fleet] = []

    def make_collector(
        settings: RunSettings, env: VectorEnvironment, parts: Assembly, league: League | None
    ) -> ClusterCollector:
        assert isinstance(env, EnvironmentsElsewhere)
        if settings.cluster.asynchronous and not parts.trainer.uses_logp:
            parts = replace(parts, rollout_steps=settings.cluster.rollout_steps)
            parts.trainer.take_one_environment_at_a_time()
        fleet = make_fleet(part_plans(settings, _code_to_send(settings), env.env_ids, parts.rollout_steps))
        fleets.append(fleet)
        fleet.start()  # members begin while this process does
        return ClusterCollector(settings, env, parts, fleet, league)

    try:
        limit_threads(settings.threads)
        set_gpu_arithmetic(compute_device(settings.device), deterministic=settings.deterministic, tf32=settings.tf32)
        env = EnvironmentsElsewhere(on_host(one_env(settings)), settings.environment.num_envs)
        built = build_around(settings, env, make_collector)
        fleets[0].await_start()
    except BaseException:
        for fleet in fleets:
            fleet.close()
        disconnect()
        raise
    own = {each.name: getattr(built, each.name) for each in fields(built)}
    return ClusterParts(**own, fleet=fleets[0], disconnect=disconnect)


def _code_to_send(settings: RunSettings) -> dict[PluginKind, dict[str, Any]]:
    """What this process has registered and the settings name, and an environment of its script, which no other process can
    import. Whatever else it has registered may be of modules that the nodes do not have."""
    text = settings.model_dump_json()
    found = {kind: {name: each for name, each in own.items() if name in text} for kind, own in registrations().items()}
    if settings.env.partition(":")[0] == "__main__":
        found.setdefault(PluginKind.ENVIRONMENT, {}).setdefault(settings.env, find_factory(settings.env))
    return found


def require_possible(settings: RunSettings) -> None:
    """Raise where settings ask for what collectors elsewhere cannot do."""
    if settings.trainer.threaded:
        raise ConfigError("trainer.threaded is the local engine's; with engine ray set cluster.asynchronous=true")
    if settings.cluster.asynchronous:
        require_corrected(settings)
    if settings.learn_from is not None:
        raise ConfigError("a run that learns from records collects nothing; leave out engine ray")
    if is_sharded(settings):
        _require_shards_possible(settings)
    if settings.environment.exclusive:
        raise ConfigError("environment.exclusive is one set of environments; engine ray has one for each collector")


def _require_shards_possible(settings: RunSettings) -> None:
    params: Any = settings.params
    num_collectors = len(part_bounds(settings)) - 1
    if not hasattr(params, "buffer_size"):
        raise ConfigError(f"{settings.algo} keeps no replay; leave out cluster.replay")
    if settings.cluster.asynchronous:
        raise ConfigError(
            "an update draws from all shards behind the same step, which asynchronous collectors do not have; set "
            "cluster.replay to learner, or leave out cluster.asynchronous"
        )
    if params.priority_exponent > 0:
        raise ConfigError(
            "priorities change with every gradient step; set cluster.replay to learner, or leave them out"
        )
    if settings.self_play is not None:
        raise ConfigError(
            "shards keep all agents' steps, opponents' as well; set cluster.replay to learner for self_play"
        )
    if settings.reward_signals:
        raise ConfigError("shards keep the environment's own rewards; set cluster.replay to learner for reward_signals")
    if params.batch_size < num_collectors:
        raise ConfigError(
            f"a batch of {params.batch_size} cannot have a transition of each of {num_collectors} shards; raise batch_size"
        )
