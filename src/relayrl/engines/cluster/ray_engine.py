"""The engine `ray`: the parts of a run with collectors on a Ray cluster; everything else is in this process.

    build_ray_parts(settings) ─▶ RayRuntime (a cluster) ─▶ RayFleet (collectors) ─▶ ClusterCollector ─▶ RunParts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relayrl.config.plugin_registry import registrations
from relayrl.engines.cluster.cluster_collector import ClusterCollector, part_bounds, part_plans
from relayrl.engines.cluster.ray_fleet import RayFleet
from relayrl.engines.cluster.ray_runtime import RayRuntime
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import Assembly, RunParts, build_around, limit_threads
from relayrl.engines.settings.generic_presets import one_env
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment, VectorReset, VectorStep, new_env_ids
from relayrl.envs.vector.on_host import on_host
from relayrl.envs.vector.vector_proxy import VectorProxy
from relayrl.errors import ConfigError, EnvError
from relayrl.training.statistics.run_statistics import Statistics


class EnvironmentsElsewhere(VectorProxy):
    """`num_envs` environments of which this process has one, to ask what they are like; it never steps."""

    def __init__(self, env: VectorEnvironment, num_envs: int) -> None:
        super().__init__(env)
        self.env_ids = new_env_ids(num_envs)

    def init_num_envs(self, num_envs: int) -> tuple[UUID, ...]:
        raise EnvError("the environments of a cluster's run are made by its collectors")

    def reset(self, *, seed: int | None = None, env_ids: Sequence[UUID] | None = None) -> VectorReset:
        raise EnvError("the environments of a cluster's run are reset by its collectors")

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        raise EnvError("the environments of a cluster's run are stepped by its collectors")

    def build_observation(self) -> Any:
        raise EnvError("the environments of a cluster's run are seen by its collectors")


def build_ray_parts(settings: RunSettings) -> RunParts:
    """Connect to the cluster or begin one, and build the parts; where that fails, nothing is left running."""
    _require_possible(settings)
    limit_threads(settings.threads)
    runtime = RayRuntime(settings.cluster, len(part_bounds(settings)) - 1)
    fleets: list[RayFleet] = []

    def make_collector(settings: RunSettings, env: VectorEnvironment, parts: Assembly) -> ClusterCollector:
        num_steps = parts.rollout_steps
        fleet = RayFleet(runtime, settings, part_plans(settings, registrations(), env.env_ids, num_steps))
        fleets.append(fleet)
        fleet.start()
        return ClusterCollector(settings, env, parts, fleet)

    try:
        env = EnvironmentsElsewhere(on_host(one_env(settings)), settings.environment.num_envs)
        built = build_around(settings, env, make_collector)
        fleets[0].await_start()
    except BaseException:
        for fleet in fleets:
            fleet.close()
        runtime.close()
        raise
    return ClusterParts(
        built.env,
        built.policies,
        built.acting,
        built.trainer,
        built.collector,
        built.signals,
        built.block_steps,
        built.recorder,
        fleets[0],
        runtime,
    )


@dataclass(frozen=True, slots=True)
class ClusterParts(RunParts):
    """The parts of a run whose collectors are elsewhere."""

    fleet: RayFleet | None = None
    runtime: RayRuntime | None = None

    def close(self) -> None:
        try:
            if self.fleet is not None:
                self.fleet.close()
        finally:
            try:
                RunParts.close(self)
            finally:
                if self.runtime is not None:
                    self.runtime.close()


def _require_possible(settings: RunSettings) -> None:
    if settings.trainer.threaded:
        raise ConfigError("trainer.threaded is the local engine's; with engine ray set cluster.asynchronous=true")
    if settings.learn_from is not None:
        raise ConfigError("a run that learns from records collects nothing; leave out engine ray")
    if settings.environment.exclusive:
        raise ConfigError("environment.exclusive is one set of environments; engine ray has one for each collector")
