"""Where on a Ray cluster the parts of a run are, and what they reserve there: one placement group for each kind of part.

    collectors    spread over the nodes, or packed (`cluster.placement.strategy`)
    learners      packed: as few nodes as have room, since they add up their gradients at every step

A group's places are reserved together, or none of them. When a node is lost, Ray looks for a new place for what it had, and a
collector that is replaced goes there. A kind of part that reserves nothing has no group; Ray puts it anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relayrl.engines.settings.cluster_settings import PlacementSettings, Spread


@dataclass(frozen=True, slots=True)
class Need:
    """What one part reserves of its node."""

    cpus: float
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    def bundle(self) -> dict[str, float]:
        """The same as Ray's resources by name; those of which nothing is reserved left out."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount > 0}

    def __str__(self) -> str:
        return ", ".join(f"{name} {amount:g}" for name, amount in self.bundle().items()) or "nothing"


def collector_need(placement: PlacementSettings) -> Need:
    """What each collector reserves."""
    return Need(placement.collector_cpus, placement.collector_gpus, placement.collector_resources)


def learner_need(placement: PlacementSettings) -> Need:
    """What each learner beside the first reserves."""
    return Need(placement.learner_cpus, placement.learner_gpus, placement.learner_resources)


def total_needs(placement: PlacementSettings, num_collectors: int, num_learners: int) -> dict[str, float]:
    """What all parts reserve together, by Ray's names."""
    total: dict[str, float] = {}
    for need, count in ((collector_need(placement), num_collectors), (learner_need(placement), num_learners)):
        for name, amount in need.bundle().items():
            total[name] = total.get(name, 0.0) + count * amount
    return total


class PlacedParts:
    """Places for `count` parts of one kind, numbered from 0."""

    def __init__(self, ray: Any, need: Need, count: int, strategy: Spread) -> None:
        self._ray, self._need, self.count = ray, need, count
        self._fallback = "SPREAD" if strategy is Spread.SPREAD else "DEFAULT"
        self._group: Any = None
        if need.bundle() and count:
            bundles = [need.bundle()] * count
            self._group = ray.util.placement_group(bundles, strategy=strategy.value.upper())

    def options(self, number: int) -> dict[str, Any]:
        """What Ray is asked for with one part."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where: Any = self._fallback
        if self._group is not None:
            where = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=number)
        return {
            "num_cpus": self._need.cpus,
            "num_gpus": self._need.gpus,
            "resources": dict(self._need.resources) or None,
            "scheduling_strategy": where,
            "max_restarts": 0,  # a part is more than its process: whoever started it replaces it with its state
            "max_task_retries": 0,
        }

    def has_room(self, timeout_s: float) -> bool:
        """Whether all places are reserved, at the latest after `timeout_s`."""
        return self._group is None or bool(self._group.wait(timeout_seconds=timeout_s))

    def describe(self) -> str:
        """What is asked for, and what the cluster has of it, in words."""
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        names = dict.fromkeys(["CPU", *(["GPU"] if "GPU" in total else []), *self._need.bundle()])
        parts = [
            f"{name} {free.get(name, 0):g} of {total[name]:g} free" if name in total else f"no {name}" for name in names
        ]
        nodes = sum(1 for node in self._ray.nodes() if node["Alive"])
        return f"asked for {self.count} × ({self._need}); the cluster has {nodes} nodes, {', '.join(parts)}"

    def close(self) -> None:
        """Give the places back; may be called again."""
        group, self._group = self._group, None
        if group is not None:
            self._ray.util.remove_placement_group(group)
