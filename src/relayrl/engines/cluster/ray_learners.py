"""Learners beside the first one as Ray actors, packed onto as few nodes as have room.

They meet the first learner, which is the run's own process, at the address of its node, and exchange gradients as processes of
one machine do. Their connections are as open as Ray's own: whoever reaches the cluster's ports can join.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from relayrl.engines.cluster.ray_placement import PlacedParts, learner_need
from relayrl.engines.cluster.ray_runtime import RayRuntime, import_ray
from relayrl.engines.settings.cluster_settings import Spread
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError, LearningError
from relayrl.training.learners.learner_group import END_TIMEOUT_S, LearnerGroup, LearnerPlace

_LOOK_S = 1.0


class LearnerActor:
    """What runs in a Ray actor."""

    def take_part(self, place: LearnerPlace) -> bool:
        """Learn along until the first learner ends; gives whether it said so."""
        from relayrl.training.learners.learner_process import take_part

        try:
            take_part(place, import_ray().util.get_node_ip_address())
        except LearningError:
            return False  # the first learner is gone
        return True


class _Placed:
    """A learner that was started."""

    def __init__(self, ray: Any, actor: Any, place: LearnerPlace) -> None:
        self._ray, self._actor = ray, actor
        self._over = actor.take_part.remote(place)

    def end(self) -> None:
        with contextlib.suppress(Exception):  # it, or Ray itself, may be gone
            self._ray.wait([self._over], timeout=END_TIMEOUT_S)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


class RayLearners:
    """Places for the learners of a run beside its first."""

    def __init__(self, runtime: RayRuntime, settings: RunSettings) -> None:
        self._ray, self._settings = runtime.ray, settings
        need = learner_need(settings.cluster.placement)
        self._places = PlacedParts(runtime.ray, need, settings.learners - 1, Spread.PACK)

    def await_room(self) -> None:
        """Return when their places are reserved; raises where the cluster has no room for them within `start_timeout_s`."""
        timeout_s = self._settings.environment.start_timeout_s
        end_s = time.monotonic() + timeout_s
        while not self._places.has_room(_LOOK_S):
            if time.monotonic() > end_s:
                raise ConfigError(
                    f"no room for {self._places.count} learners within {timeout_s:g} s: {self._places.describe()}; lower "
                    "learners or cluster.placement, or raise environment.start_timeout_s"
                )

    def place(self, group: LearnerGroup) -> None:
        """Have the group's learners here."""
        group.place(self._launch, self._ray.util.get_node_ip_address())

    def _launch(self, place: LearnerPlace) -> _Placed:
        options = self._places.options(place.rank - 1)
        runtime_env = dict(self._settings.cluster.runtime_env) or None
        kind = self._ray.remote(LearnerActor).options(**options, runtime_env=runtime_env)
        return _Placed(self._ray, kind.remote(), place)

    def close(self) -> None:
        """Give the places back."""
        with contextlib.suppress(Exception):  # Ray itself may be gone
            self._places.close()
