"""Settings of the engine `ray`: which cluster, what its parts are given, and how collecting and learning share the time."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import Field

from relayrl.config.settings import Settings


class Spread(Enum):
    """How collectors are laid out over the nodes of a cluster."""

    SPREAD = "spread"
    PACK = "pack"


class ReplayPlace(Enum):
    """Where the replay of a run is."""

    LEARNER = "learner"
    SHARDED = "sharded"


class PlacementSettings(Settings):
    """What each collector and each learner beside the first is given, and where."""

    strategy: Spread = Field(
        Spread.SPREAD, description="spread: collectors over all nodes; pack: as few nodes as have room"
    )
    collector_cpus: float = Field(1.0, ge=0, description="CPUs that each collector reserves")
    collector_gpus: float = Field(0.0, ge=0, description="GPUs that each collector reserves")
    collector_resources: dict[str, float] = Field(
        default_factory=dict, description="custom resources of nodes that each collector reserves, as {simulator: 1}"
    )
    learner_cpus: float = Field(
        1.0, ge=0, description="CPUs that each learner beside the first reserves; the first is the process of the run"
    )
    learner_gpus: float = Field(0.0, ge=0, description="GPUs that each learner beside the first reserves")
    learner_resources: dict[str, float] = Field(
        default_factory=dict, description="custom resources of nodes that each learner beside the first reserves"
    )


class ClusterSettings(Settings):
    """How the engine `ray` runs. `environment.workers` is the number of its collectors; at least one."""

    address: str | None = Field(
        None,
        description="an existing Ray cluster: auto, or HOST:PORT of its head; null: a cluster of this machine for this run",
    )
    asynchronous: bool = Field(
        False,
        description="collectors do not wait for each other or for the learner, which corrects for older policies (impala, "
        "appo; params.max_policy_lag bounds their age, by default 16) or learns from replay; runs are then not reproducible",
    )
    rollout_steps: int = Field(
        64,
        ge=1,
        le=1 << 16,
        description="asynchronous, algorithms with replay: steps of each environment in one call of a collector",
    )
    equal_numbers: bool = Field(
        True,
        description="synchronous: networks that are no plain MLPs compute in batches of all environments, so that their "
        "numbers are those of the local engine; false: in batches of each collector's own environments",
    )
    replay: ReplayPlace = Field(
        ReplayPlace.LEARNER,
        description="algorithms with replay: at the learner; or sharded: each collector keeps the steps of its own "
        "environments, and the learner draws from each in proportion to their number",
    )
    rollout_timeout_s: float = Field(
        600.0, gt=0, description="a collector that takes longer for one rollout is ended and replaced"
    )
    max_replacements_per_minute: int = Field(
        10, ge=1, description="above this rate a collector that was lost becomes an error"
    )
    object_store_mb: int = Field(512, ge=80, description="shared memory of a cluster that the run starts itself, in MB")
    placement: PlacementSettings = Field(
        default_factory=PlacementSettings, description="resources and nodes of collectors and learners"
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray's runtime environment of the collectors, such as {working_dir: .} for code that nodes do not have",
    )
