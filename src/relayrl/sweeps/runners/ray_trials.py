"""Trials as tasks of a Ray cluster, one core each. All nodes need the sweep's directory: outcomes and checkpoints are files.

The cluster is the one that `RAY_ADDRESS` names, which is never shut down; else a cluster of this machine, which ends with
the sweep. A cluster that merely runs on this machine is left to whoever began it: it may end at any moment. A task leaves
with the sweep's process: Ray ends the tasks of a driver that is gone.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from relayrl.engines.cluster.ray_runtime import RayRuntime
from relayrl.engines.settings.cluster_settings import ClusterSettings
from relayrl.sweeps.runners.trial_runner import StartedTrial, TrialRunner
from relayrl.sweeps.trial_jobs import TrialOrder


class RayRunner(TrialRunner):
    """Starts a task for each trial."""

    def __init__(self, num_at_once: int) -> None:
        named = os.environ.get("RAY_ADDRESS")
        self._runtime = RayRuntime(ClusterSettings(address=None if named == "local" else named), num_at_once)
        self._ray = self._runtime.ray
        # A process of its own for each trial: what one leaves behind is not the next one's.
        self._task = self._ray.remote(num_cpus=1, max_calls=1, max_retries=0)(_run_in_task)

    def start(self, order: TrialOrder) -> StartedTrial:
        return RayTrial(self._ray, self._task.options(name=order.name).remote(order.to_json(), list(sys.path)))

    def close(self) -> None:
        self._runtime.close()


class RayTrial(StartedTrial):
    """A trial's task."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray, self._task = ray, task

    def how_it_ended(self) -> str | None:
        ready, _ = self._ray.wait([self._task], timeout=0)
        if not ready:
            return None
        try:
            self._ray.get(self._task)
        except self._ray.exceptions.RayError as error:
            return (str(error).splitlines() or [type(error).__name__])[0]
        return "ended"

    def stop(self) -> None:
        self._ray.cancel(self._task, force=False)

    def kill(self) -> None:
        self._ray.cancel(self._task, force=True)


def _run_in_task(order: str, path: list[str]) -> None:
    sys.path[:] = path
    TrialOrder.from_json(order).run()
