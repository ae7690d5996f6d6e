"""The engine `ray`: the parts of a run with collectors on a Ray cluster.

build_ray_parts(settings) ─▶ RayRuntime (a cluster) ─▶ RayFleet (collectors) ─▶ ClusterCollector ─▶ ClusterParts
"""

from __future__ import annotations

from relayrl.engines.cluster.cluster_collector import part_bounds
from relayrl.engines.cluster.cluster_parts import ClusterParts, build_cluster_parts, require_possible
from relayrl.engines.cluster.ray_fleet import RayFleet
from relayrl.engines.cluster.ray_runtime import RayRuntime
from relayrl.engines.settings.run_settings import RunSettings


def build_ray_parts(settings: RunSettings) -> ClusterParts:
    """Connect to the cluster or begin one, and build the parts; where that fails, nothing is left running."""
    require_possible(settings)
    runtime = RayRuntime(settings.cluster, len(part_bounds(settings)) - 1, settings.learners - 1)
    if settings.learners == 1:
        return build_cluster_parts(settings, lambda plans: RayFleet(runtime, settings, plans), runtime.close)
    return _with_learners(settings, runtime)


def _with_learners(settings: RunSettings, runtime: RayRuntime) -> ClusterParts:
    from relayrl.engines.cluster.ray_learners import RayLearners  # torch.distributed, which few runs need

    learners: RayLearners | None = None

    def disconnect() -> None:
        if learners is not None:
            learners.close()
        runtime.close()

    try:
        learners = RayLearners(runtime, settings)
        learners.await_room()
    except BaseException:
        disconnect()
        raise
    parts = build_cluster_parts(settings, lambda plans: RayFleet(runtime, settings, plans), disconnect)
    assert parts.learners is not None  # algorithms that cannot have several were refused
    learners.place(parts.learners)
    return parts
